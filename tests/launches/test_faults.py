# SPDX-License-Identifier: Apache-2.0
"""A call of CUDA's runtime, of cuBLAS or of cublasLt fails once in a lane's run: that is the run's
error, with which the process goes on and has what it had, or the device's, with which it ends."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_process import BUILD, start
from launch_log import Line, line_of

# Products of each kind, and numbers that change with each step, so that nothing is captured.
GRAPH = """srg 1 "faults"
symbol tokens 1..1 tokens
symbol past 0..1023 past
symbol capacity 2..1024 capacity
input %x : float32[8, 8]
%a = aten::add.Scalar(%x, past, 1)
%b = aten::mm(%a, %a)
%bias = aten::full([8], past, dtype=float32)
%c = aten::linear(%b, %a, %bias)
%rows = aten::view(%c, [2, 4, 8])
%turned = aten::transpose.int(%rows, 1, 2)
%d = aten::bmm(%rows, %turned)
%e = aten::clone(%d)
output %e
"""
# What a warm run of it calls that can fail, each once at least.
CALLS = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaGetLastError",
    "cublasSetStream",
    "cublasSetWorkspace",
    "cublasSetMathMode",
    "cublasSgemm",
    "cublasSgemmStridedBatched",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
)
CODES = {
    "OUT_OF_MEMORY": "out_of_memory",
    "INVALID_VALUE": "invalid_argument",
    "NOT_SUPPORTED": "unsupported",
    "ILLEGAL_ADDRESS": "device_lost",
    "LAUNCH_FAILED": "device_lost",
    "UNKNOWN": "device_lost",
}
STICKY = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED")
FAILED = re.compile(r"faults.decode run (?P<run>\d+): (?P<name>\w+): (?P<message>.*)")
LEFT = re.compile(r"faults.decode has \d+ bytes and \d+ descriptors")
WARM = 3  # the run of four


class Outcome(NamedTuple):
    code: int
    printed: str
    errors: str
    lines: list[Line]

    def failures(self) -> list[tuple[str, str]]:
        return [(one["run"], one["name"]) for one in FAILED.finditer(self.printed)]


def run(folder: Path, options: str = "") -> Outcome:
    folder.mkdir(exist_ok=True)
    graph = folder / "faults.decode.srg"
    graph.write_text(GRAPH)
    log = folder / "log"
    done = start(log, [str(BUILD / "bin/run-graph"), "--again", str(graph)], options)
    lines = [line_of(text) for text in log.read_text().splitlines()]
    return Outcome(done.returncode, done.stdout, done.stderr, lines)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    done = run(tmp_path_factory.mktemp("faults"))
    assert done.code == 0, done.errors
    assert done.failures() == []
    return done


def mark_at(lines: list[Line], text: str) -> int:
    marks = [i for i, line in enumerate(lines) if line.arguments.get("text") == text]
    return marks[0]


def plain(function: str) -> str:
    return function.removesuffix("_v2")


def warm_run(lines: list[Line]) -> tuple[int, int]:
    return mark_at(lines, f"faults.decode/run {WARM}"), mark_at(
        lines, f"faults.decode/run {WARM + 1}"
    )


def number_in_warm_run(lines: list[Line], call: str) -> int:
    """Of the call's first one there, among all of it."""
    begin, _ = warm_run(lines)
    return 1 + sum(plain(line.function) == call for line in lines[:begin])


@pytest.mark.ci
def test_the_calls_that_fail_are_all_that_a_warm_run_makes(whole: Outcome) -> None:
    begin, end = warm_run(whole.lines)
    made = {plain(line.function) for line in whole.lines[begin + 1 : end]}
    questions = {
        name for name in made if re.search(r"Get(Device|Stream|Math|Pointer)|Destroy", name)
    }
    assert made - questions - {"cudaStreamIsCapturing"} == set(CALLS)


@pytest.mark.full
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_the_run_s_or_the_device_s(
    whole: Outcome, tmp_path: Path, call: str, code: str
) -> None:
    expect_class(whole, tmp_path, call, code)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("cublasSgemm", "OUT_OF_MEMORY"),
        ("cublasSgemm", "NOT_SUPPORTED"),
        ("cublasSgemm", "LAUNCH_FAILED"),
        ("cublasSgemm", "UNKNOWN"),
        ("cublasLtMatmul", "NOT_SUPPORTED"),
        ("cudaLaunchKernel", "INVALID_VALUE"),
        ("cudaLaunchKernel", "ILLEGAL_ADDRESS"),
    ],
)
def test_some_of_them(whole: Outcome, tmp_path: Path, call: str, code: str) -> None:
    expect_class(whole, tmp_path, call, code)


def class_of(call: str, code: str) -> str | None:
    """None: nothing fails."""
    if call == "cudaStreamSynchronize":
        return "device_lost"  # it tells of what was before it
    if call == "cublasLtMatmul" and code not in STICKY:
        return None  # PyTorch asks cuBLAS instead, and eager programs alike
    return CODES[code]


def expect_class(whole: Outcome, folder: Path, call: str, code: str) -> None:
    number = number_in_warm_run(whole.lines, call)
    done = run(folder / "failing", f"{call}@{number}={code}")
    name = class_of(call, code)
    assert done.failures() == ([] if name is None else [(str(WARM), name)])
    if name == "device_lost":
        assert done.code == 1
        assert "has failed, and this process can use it no more" in done.errors
        return
    assert done.code == 0, done.errors
    assert LEFT.search(done.printed)[0] == LEFT.search(whole.printed)[0]


@pytest.mark.ci
def test_a_run_whose_outputs_nobody_reads_is_waited_for_once_and_nothing_comes_back(
    whole: Outcome,
) -> None:
    begin, end = warm_run(whole.lines)
    lines = whole.lines[begin + 1 : end]
    assert [line.function for line in lines if line.is_wait()] == ["cudaStreamSynchronize"]
    assert lines[-1].function == "cudaStreamSynchronize"
    assert sum(line.bytes_to_host() for line in lines) == 0
