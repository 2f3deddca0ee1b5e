# SPDX-License-Identifier: Apache-2.0
"""Our interpreter launches what eager PyTorch launches: the same kernels in the same order with the
same grids, the same products of memory that is aligned alike. So a GPU gives the same bits."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_process import BUILD, HERE, run, start
from launch_log import Line, count, launched, sections, work

FORWARDS = ("bert", "electra")
GENERATORS = ("gpt2", "llama", "qwen2")
DATA = HERE.parent / "data"
GRAPHS = [
    *(DATA / f"forwards/{name}.srg" for name in FORWARDS),
    *(
        DATA / f"captures/{name}.{part}.srg"
        for name in GENERATORS
        for part in ("prefill", "decode")
    ),
]
NAMES = [graph.stem for graph in GRAPHS]
# What moves bytes of one dtype, and makes positions and masks. A cache that grows is a copy where
# PyTorch's is a concatenation, positions are inputs, and GPT-2 looks for padding.
BOOKKEEPING = re.compile(
    r"CatArrayBatchedCopy|gpu_kernel_impl_nocast<at::native::direct_copy_kernel|arange"
    r"|CUDAFunctorOnSelf_add<long>|CompareEqFunctor<long>|or_kernel|gpu_index_kernel"
)
# Of these, what a step of the model launches and ours does not.
MADE_BEFORE = {"gpt2": 5, "llama": 2, "qwen2": 2}

Log = dict[str, list[Line]]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Log:
    log = tmp_path_factory.mktemp("forward") / "log"
    done = run(log, str(HERE / "forward.py"), *FORWARDS, *GENERATORS)
    assert done.returncode == 0, done.stderr
    return sections(log)


# Of PyTorch's allocator, or places of a plan in memory of our own.
MEMORIES: dict[str, list[str]] = {"unplanned": [], "planned": ["--planned"]}
DRAWN = [f"{name}.decode" for name in GENERATORS]
WARM_STEPS = ("step 2", "step 3", "step 4")
TOKEN_BYTES = 8


# What run-graph prints of a lane that has drawn tokens.
PLANS = re.compile(
    r"(?P<name>\S+) planned (?P<planned>\d+) of (?P<runs>\d+) records (?P<records>\d+) "
    r"misses (?P<misses>\d+) bytes (?P<bytes>\d+) peak (?P<peak>\d+)"
)


class Ours(NamedTuple):
    log: Log
    printed: str


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ours]:
    folder = tmp_path_factory.mktemp("interpreter")
    return {name: run_graphs(folder / name, options) for name, options in MEMORIES.items()}


def run_graphs(log: Path, options: list[str]) -> Ours:
    done = start(log, [str(BUILD / "bin/run-graph"), *options, *map(str, GRAPHS)])
    assert done.returncode == 0, done.stderr
    return Ours(sections(log), done.stdout)


@pytest.fixture(scope="module")
def logs(ours: dict[str, Ours]) -> dict[str, Log]:
    return {name: run.log for name, run in ours.items()}


@pytest.mark.ci
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("model", FORWARDS)
def test_a_forward_pass_launches_what_its_model_does(
    eager: Log, logs: dict[str, Log], model: str, memory: str
) -> None:
    wanted = work(eager[f"{model}/run 2"])
    assert len(wanted) > 30
    assert work(logs[memory][f"{model}/run 2"]) == wanted


def computing(lines: list[Line]) -> list[Line]:
    return [one for one in work(lines) if not BOOKKEEPING.search(one.arguments.get("kernel", ""))]


@pytest.mark.ci
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("part", ["prefill", "decode"])
@pytest.mark.parametrize("model", GENERATORS)
def test_a_step_with_a_cache_computes_what_its_model_does(
    eager: Log, logs: dict[str, Log], model: str, part: str, memory: str
) -> None:
    theirs, made = eager[f"{model}.{part}/run 2"], logs[memory][f"{model}.{part}/run 2"]
    assert len(computing(theirs)) > 30
    assert computing(made) == computing(theirs)
    assert len(work(made)) == len(work(theirs)) - MADE_BEFORE[model]


def calls_of_the_driver(lines: list[Line]) -> list[str]:
    return [line.function for line in lines if re.match("cu[A-Z]", line.function)]


@pytest.mark.ci
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_warm_run_waits_for_nothing_and_asks_the_driver_for_nothing(
    logs: dict[str, Log], name: str, memory: str
) -> None:
    lines = logs[memory][f"{name}/run 2"]
    assert count(lines, Line.is_launch) > 0
    assert count(lines, Line.is_wait) == 0
    assert count(lines, Line.is_allocation) == count(lines, Line.is_free) == 0
    assert calls_of_the_driver(lines) == []
    assert sum(line.bytes_to_host() for line in lines) == 0


@pytest.mark.ci
@pytest.mark.parametrize("name", DRAWN)
def test_a_warm_decode_step_waits_once_for_its_token(logs: dict[str, Log], name: str) -> None:
    """From the token that it is given to the one that it gives, each time behind one more."""
    first = work(launched(logs["planned"][f"{name}/{WARM_STEPS[0]}"]))
    for step in WARM_STEPS:
        lines = logs["planned"][f"{name}/{step}"]
        done = work(launched(lines))
        assert [line.function for line in done] == [line.function for line in first]
        assert count(lines, Line.is_allocation) == count(lines, Line.is_free) == 0
        assert calls_of_the_driver(lines) == []
        assert count(lines, Line.is_wait) == 1
        assert sum(line.bytes_to_host() for line in lines) == TOKEN_BYTES
        assert not [line for line in lines if line.function.startswith("cudaMemset")]


def test_all_that_a_lane_does_is_on_its_stream(logs: dict[str, Log]) -> None:
    for name in DRAWN:
        lines = [one for step in WARM_STEPS for one in logs["planned"][f"{name}/{step}"]]
        streams = {line.arguments["stream"] for line in lines if "stream" in line.arguments}
        handles = {line.arguments["handle"] for line in lines if "handle" in line.arguments}
        [stream] = streams
        assert stream.startswith("stream")
        assert handles and all(f" on {stream} " in handle for handle in handles)


def test_a_planned_lane_has_no_memory_but_the_seam_s(logs: dict[str, Log]) -> None:
    """PyTorch's allocator is not asked: what products read and write was mapped by CudaPal."""
    asked = [line.function for lines in logs["planned"].values() for line in lines]
    assert "cuMemMap" in asked
    assert "cudaMalloc" not in asked
    steps = [one for name in DRAWN for one in logs["planned"][f"{name}/step 2"]]
    operands = {
        line.arguments[which]
        for line in steps
        if line.is_product()
        for which in "ABCD"
        if which in line.arguments
    }
    assert operands and all(operand.startswith("v") for operand in operands)


def test_no_step_leaves_its_plan_and_a_plan_has_no_gaps(ours: dict[str, Ours]) -> None:
    plans = [found.groupdict() for found in PLANS.finditer(ours["planned"].printed)]
    assert [plan["name"] for plan in plans] == DRAWN
    for plan in plans:
        assert plan["planned"] == plan["runs"] and plan["misses"] == "0"
        assert plan["records"] == "1"
        assert 0 < int(plan["peak"]) <= int(plan["bytes"]) <= 1.02 * int(plan["peak"])


def test_workspaces_are_the_lane_s_and_no_plan_has_them(logs: dict[str, Log]) -> None:
    """PyTorch takes them once for a stream, and keeps them: in a plan others would write there."""
    steps = [logs["planned"][f"gpt2.decode/{step}"] for step in WARM_STEPS]
    used = {one.arguments["workspace"] for lines in steps for one in lines if takes_workspace(one)}
    placed = {one.arguments["D"] for lines in steps for one in lines if takes_workspace(one)}
    [workspace] = used
    assert reservation(workspace) not in {reservation(place) for place in placed}


def takes_workspace(line: Line) -> bool:
    return line.function == "cublasLtMatmul"


def reservation(address: str) -> str:
    return address.split("+")[0]
