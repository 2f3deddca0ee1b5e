# SPDX-License-Identifier: Apache-2.0
"""A call of CUDA's that fails is an error of PyTorch's, and never the process's end."""

import json
from pathlib import Path

import pytest
from fake_process import HERE, run
from launch_log import Line, count, sections

SCRIPT = str(HERE / "failing.py")
LIMIT = "memory=64M"
FAILURES = {
    "cudaLaunchKernel@1=LAUNCH_FAILED": "unspecified launch failure",
    "cudaStreamSynchronize@1=ILLEGAL_ADDRESS": "illegal memory access",
    "cublasCreate@1=OUT_OF_MEMORY": "CUBLAS_STATUS_ALLOC_FAILED",
    "cublasSgemm@1=UNKNOWN": "CUBLAS_STATUS_EXECUTION_FAILED",
}


def outcome(log: Path, options: str) -> dict[str, str]:
    done = run(log, SCRIPT, options=options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_script_succeeds_where_nothing_fails(tmp_path: Path) -> None:
    assert outcome(tmp_path / "log", "") == {"work": "", "again": ""}


@pytest.mark.ci
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_call_is_an_error(tmp_path: Path, failure: str) -> None:
    assert FAILURES[failure] in outcome(tmp_path / "log", failure)["work"]


@pytest.mark.ci
def test_after_a_fault_of_the_device_nothing_succeeds(tmp_path: Path) -> None:
    found = outcome(tmp_path / "log", "cudaStreamSynchronize@1=ILLEGAL_ADDRESS")
    assert "illegal memory access" in found["again"]


def test_memory_that_is_out_is_pytorch_s_error_and_the_next_smaller_piece_is_there(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    found = outcome(log, LIMIT)
    assert found["work"].startswith("OutOfMemoryError: CUDA out of memory")
    assert found["again"] == ""
    [refused] = [
        line.error for line in sections(log)["work"] if line.is_allocation() and line.error
    ][:1]
    assert refused == 2


def test_pytorch_asks_again_after_it_has_given_back_what_it_kept(tmp_path: Path) -> None:
    """So one refusal of cudaMalloc is seen by nobody."""
    log = tmp_path / "log"
    assert outcome(log, "cudaMalloc@1=OUT_OF_MEMORY")["work"] == ""
    assert count(sections(log)["work"], Line.is_allocation) >= 2
