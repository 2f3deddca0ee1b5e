# SPDX-License-Identifier: Apache-2.0
"""What a graph may ask of a GPU, and what is refused before anything is launched."""

import subprocess
from pathlib import Path

import pytest
from fake_process import BUILD, HERE, start

HEAD = 'srg 1 "made"\ninput %x : float32[8, 8]\n'
REFUSED = {
    "%y = aten::cumsum(%x, 0)": "aten::cumsum is not offered on a GPU",
    '%y = aten::ones([8], device="cpu")': "must be left out: a program runs on one device",
    '%y = aten::ones([8], device="cuda:1")': "must be left out: a program runs on one device",
    "%y = aten::nothing(%x)": "aten::nothing is not offered.",
}
# What fails in a run of a planned lane, in which of Llama's, and what is said of it.
FAILURES = {
    "cudaLaunchKernel=ILLEGAL_ADDRESS": ("run 1", "The device has failed, and this process"),
    "cudaMemsetAsync=LAUNCH_FAILED": ("run 1", "The device has failed, and this process"),
    "cudaStreamSynchronize=ILLEGAL_ADDRESS": ("step 1", "The GPU has failed, and this process"),
    "cuMemCreate=OUT_OF_MEMORY": ("run 1", "CUDA_ERROR_OUT_OF_MEMORY"),
    "cuMemMap=INVALID_VALUE": ("run 1", "CUDA_ERROR_INVALID_VALUE"),
}
TAKEN = ['%y = aten::ones([8], device="cuda:0")', '%y = aten::ones([8], device="cuda")']


def run_node(folder: Path, node: str) -> subprocess.CompletedProcess[str]:
    graph = folder / "made.srg"
    graph.write_text(f"{HEAD}{node}\noutput %y\n")
    return start(folder / "log", [str(BUILD / "bin/run-graph"), "--planned", str(graph)])


@pytest.mark.parametrize("node", REFUSED)
def test_what_a_gpu_does_not_offer_is_refused(tmp_path: Path, node: str) -> None:
    done = run_node(tmp_path, node)
    assert done.returncode == 1
    assert REFUSED[node] in done.stderr


def run_llama(
    log: Path, memory: str = "--planned", **failures: str
) -> subprocess.CompletedProcess[str]:
    graph = HERE.parent / "data/captures/llama.decode.srg"
    return start(log, [str(BUILD / "bin/run-graph"), memory, str(graph)], **failures)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    log = tmp_path_factory.mktemp("refusals") / "log"
    done = run_llama(log)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


@pytest.mark.ci
@pytest.mark.parametrize("failure", FAILURES)
def test_what_fails_below_a_lane_is_told(tmp_path: Path, lines: list[str], failure: str) -> None:
    function, code = failure.split("=")
    section, message = FAILURES[failure]
    before = lines[: lines.index(f"mark\ttext=llama.decode/{section}")]
    calls = sum(line.split("\t")[0] == function for line in before)
    whose = "options" if function.startswith("cuda") else "driver"
    done = run_llama(tmp_path / "log", **{whose: f"{function}@{calls + 1}={code}"})
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("node", TAKEN)
def test_a_program_may_name_its_own_device(tmp_path: Path, node: str) -> None:
    done = run_node(tmp_path, node)
    assert done.returncode == 0, done.stderr


def test_a_process_has_one_lane_on_a_gpu(tmp_path: Path) -> None:
    done = run_llama(tmp_path / "log")
    assert done.returncode == 0, done.stderr
    assert "llama.decode: a second lane: There is a lane on this GPU" in done.stdout


def test_where_there_is_no_gpu_that_is_told_again_and_again(tmp_path: Path) -> None:
    done = run_llama(tmp_path / "log", options="cudaGetDeviceCount@1=NO_DEVICE")
    assert done.returncode == 1, done.stderr
    assert "There is no GPU" in done.stderr


@pytest.mark.ci
def test_what_waits_for_memory_runs_when_it_has_come(tmp_path: Path) -> None:
    """What libraries keep is asked for as what a run takes is, and may be on its way, too."""
    log = tmp_path / "log"
    late = run_llama(log, "--late")
    assert late.returncode == 0, late.stderr
    assert " misses 0 " in late.stdout
