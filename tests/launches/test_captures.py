# SPDX-License-Identifier: Apache-2.0
"""What PyTorch can capture in a CUDA graph, and what is refused, as on a GPU."""

import json

import pytest
from fake_process import HERE, run
from launch_log import Line, count, sections

UNSUPPORTED, INVALIDATED = 900, 901
REFUSED = ("item", "nonzero", "mask", "wait")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict[str, list[Line]]]:
    log = tmp_path_factory.mktemp("captures") / "log"
    done = run(log, str(HERE / "captures.py"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), sections(log)


def test_captured_work_is_replayed_by_one_call(captures: tuple[dict, dict]) -> None:
    errors, log = captures
    assert errors["linear"] is None
    functions = [line.function for line in log["linear/captured"]]
    captured = log["linear/captured"][functions.index("cudaStreamBeginCapture") :]
    replayed = log["linear/replayed"]
    [replay] = [line for line in replayed if line.function == "cudaGraphLaunch"]
    assert count(captured, Line.is_product) == 1
    done = count(captured, Line.is_launch) + count(captured, Line.is_product)
    assert int(replay.arguments["nodes"]) == done
    assert count(replayed, Line.is_launch) + count(replayed, Line.is_product) == 0


def test_the_allocator_takes_memory_in_a_capture(captures: tuple[dict, dict]) -> None:
    """It is in relaxed mode then: an allocator of ours has to be, too."""
    errors, log = captures
    assert errors["memory"] is None
    functions = [line.function for line in log["memory/captured"]]
    captured = functions[functions.index("cudaStreamBeginCapture") :]
    relaxed = captured.index("cudaThreadExchangeStreamCaptureMode")
    assert relaxed < captured.index("cudaMalloc")


@pytest.mark.parametrize("case", REFUSED)
def test_what_waits_for_the_device_is_refused(captures: tuple[dict, dict], case: str) -> None:
    errors, log = captures
    assert "capturing" in errors[case]
    codes = [line.error for line in log[f"{case}/captured"] if line.error]
    assert codes[0] == UNSUPPORTED
    ends = [line for line in log[f"{case}/captured"] if line.function == "cudaStreamEndCapture"]
    assert [line.error for line in ends] == [INVALIDATED]


def test_pytorch_itself_refuses_a_copy_to_pageable_memory(captures: tuple[dict, dict]) -> None:
    errors, log = captures
    assert "unless the CPU tensor is pinned" in errors["to the host"]
    assert [line for line in log["to the host/captured"] if line.error] == []
