# SPDX-License-Identifier: Apache-2.0
"""What eager PyTorch does on a GPU for a step of a model, as the fake runtime sees it. The figures
are those of docs/CUDA.md."""

from pathlib import Path

import pytest
from fake_process import HERE, run
from launch_log import Line, alignment, count, work

DTYPES = ("float32", "bfloat16")
GENERATORS = ("gpt2", "llama", "qwen2")
ENCODERS = ("bert", "minilm")
# Launches and calls of cuBLAS a layer, in a warm step.
A_LAYER = {
    ("gpt2", "float32"): (15, 4),
    ("gpt2", "bfloat16"): (15, 4),
    ("llama", "float32"): (37, 9),
    ("llama", "bfloat16"): (33, 7),
    ("qwen2", "float32"): (37, 9),
    ("qwen2", "bfloat16"): (33, 7),
    ("bert", "float32"): (6, 6),
    ("bert", "bfloat16"): (6, 6),
    ("minilm", "float32"): (6, 6),
    ("minilm", "bfloat16"): (6, 6),
}
TOKEN_BYTES = 8
CUBLAS_WORKSPACE = 32 << 20
CUBLASLT_WORKSPACE = 1 << 20

Log = dict[str, list[Line]]


def warm_step(model: str) -> str:
    return "decode 3" if model in GENERATORS else "run 3"


def counts(lines: list[Line]) -> tuple[int, int]:
    return count(lines, Line.is_launch), count(lines, Line.is_product)


@pytest.mark.ci
def test_the_same_program_makes_the_same_calls(eager_log: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert run(again, str(HERE / "eager.py")).returncode == 0
    assert again.read_text() == eager_log.read_text()


def test_no_call_of_an_eager_model_fails(eager: Log) -> None:
    assert [line for lines in eager.values() for line in lines if line.error] == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", GENERATORS + ENCODERS)
def test_a_layer_of_a_warm_step_has_as_many_launches_as_the_manual_says(
    eager: Log, model: str, dtype: str
) -> None:
    two, three = (eager[f"{model}/{dtype}/{n} layers/{warm_step(model)}"] for n in (2, 3))
    (launches, products), (more_launches, more_products) = counts(two), counts(three)
    assert (more_launches - launches, more_products - products) == A_LAYER[model, dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", GENERATORS)
def test_a_warm_decode_step_asks_the_driver_for_nothing_and_waits_once(
    eager: Log, model: str, dtype: str
) -> None:
    for step in ("decode 2", "decode 3", "decode 4"):
        lines = eager[f"{model}/{dtype}/3 layers/{step}"]
        assert count(lines, Line.is_allocation) == 0
        assert count(lines, Line.is_free) == 0
        assert count(lines, Line.is_wait) == 1
        assert sum(line.bytes_to_host() for line in lines) == TOKEN_BYTES
        assert counts(lines) == counts(eager[f"{model}/{dtype}/3 layers/decode 1"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", ENCODERS)
def test_an_encoder_s_warm_runs_do_the_same_work(eager: Log, model: str, dtype: str) -> None:
    runs = [eager[f"{model}/{dtype}/2 layers/run {number}"] for number in (2, 3, 4)]
    assert work(runs[0])
    assert work(runs[0]) == work(runs[1]) == work(runs[2])


def test_all_work_is_on_one_stream(eager: Log) -> None:
    steps = [line for name, lines in eager.items() if "decode" in name for line in lines]
    streams = {line.arguments["stream"] for line in steps if line.is_launch()}
    assert streams == {"0"}
    settings = {
        line.arguments.get("handle", line.arguments.get("lightHandle"))
        for line in steps
        if line.is_product()
    }
    assert settings == {f"blas1 on 0 math 0 pointers 0 workspace {CUBLAS_WORKSPACE}"}


@pytest.mark.parametrize("model", GENERATORS + ENCODERS)
def test_what_products_read_and_write_is_aligned_to_512_bytes(eager: Log, model: str) -> None:
    """cuBLAS chooses kernels by this, and so bits: what replaces PyTorch's allocator keeps it."""
    lines = [
        line for dtype in DTYPES for line in eager[f"{model}/{dtype}/3 layers/{warm_step(model)}"]
    ]
    operands = [
        line.arguments[name]
        for line in lines
        if line.is_product()
        for name in "ABCD"
        if name in line.arguments
    ]
    assert operands
    assert {alignment(operand) for operand in operands} == {512}


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_a_bias_have_a_workspace_of_their_own(eager: Log, dtype: str) -> None:
    lines = eager[f"gpt2/{dtype}/3 layers/decode 3"]
    with_bias = [line for line in lines if line.function == "cublasLtMatmul"]
    assert with_bias
    assert {int(line.arguments["workspaceSizeInBytes"]) for line in with_bias} == {
        CUBLASLT_WORKSPACE
    }
