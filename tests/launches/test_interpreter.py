# SPDX-License-Identifier: Apache-2.0
"""Our interpreter launches what eager PyTorch launches: the same kernels in the same order with the
same grids, the same products of memory that is aligned alike. So a GPU gives the same bits."""

import re

import pytest
from fake_process import BUILD, HERE, run, start
from launch_log import Line, count, sections, work

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


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Log:
    log = tmp_path_factory.mktemp("interpreter") / "log"
    program = BUILD / "bin/run-graph"
    done = start(log, [str(program), *map(str, GRAPHS)])
    assert done.returncode == 0, done.stderr
    return sections(log)


@pytest.mark.ci
@pytest.mark.parametrize("step", ["run 1", "run 2"])
@pytest.mark.parametrize("model", FORWARDS)
def test_a_forward_pass_launches_what_its_model_does(
    eager: Log, ours: Log, model: str, step: str
) -> None:
    wanted = work(eager[f"{model}/{step}"])
    assert len(wanted) > 30
    assert work(ours[f"{model}/{step}"]) == wanted


def computing(lines: list[Line]) -> list[Line]:
    return [one for one in work(lines) if not BOOKKEEPING.search(one.arguments.get("kernel", ""))]


@pytest.mark.ci
@pytest.mark.parametrize("part", ["prefill", "decode"])
@pytest.mark.parametrize("model", GENERATORS)
def test_a_step_with_a_cache_computes_what_its_model_does(
    eager: Log, ours: Log, model: str, part: str
) -> None:
    theirs, made = eager[f"{model}.{part}/run 2"], ours[f"{model}.{part}/run 2"]
    assert len(computing(theirs)) > 30
    assert computing(made) == computing(theirs)
    assert len(work(made)) == len(work(theirs)) - MADE_BEFORE[model]


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_a_warm_run_waits_for_nothing_and_asks_the_driver_for_nothing(ours: Log, name: str) -> None:
    lines = ours[f"{name}/run 2"]
    assert count(lines, Line.is_launch) > 0
    assert count(lines, Line.is_wait) == 0
    assert count(lines, Line.is_allocation) == count(lines, Line.is_free) == 0
    assert sum(line.bytes_to_host() for line in lines) == 0
