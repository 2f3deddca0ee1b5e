# SPDX-License-Identifier: Apache-2.0
"""An operator whose shapes cannot be inferred again and again runs in djinnd at once. The faults
are meta kernels that a test puts in the place of PyTorch's own, in this process alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import djinn
import pytest
import torch
from twins import DEVICE, expect_equal, numbers

ROW = 10
SLOW_S = 0.5


@contextmanager
def meta_kernel(name: str, kernel: Callable[..., object]) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, "Meta", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def tripped() -> list[str]:
    return djinn.get_profiler().get_stats()["tripped_operators"]


def raising(*_: object, **__: object) -> object:
    raise RuntimeError("this meta kernel is broken")


def test_an_operator_whose_inference_keeps_failing_runs_at_once_with_its_real_shape() -> None:
    with meta_kernel("_pdist_forward", raising):
        for rows in range(2, ROW + 1):
            with pytest.raises(RuntimeError, match="broken"):
                torch.pdist(numbers(DEVICE, rows, 3))
        assert "aten::_pdist_forward" not in tripped()
        for rows in (20, 21, 5):
            expect_equal(
                torch.pdist(numbers("cpu", rows, 3)), torch.pdist(numbers(DEVICE, rows, 3))
            )
    assert "aten::_pdist_forward" in tripped()


def test_wrong_arguments_trip_nothing_and_keep_their_error() -> None:
    for columns in range(3, 3 + 3 * ROW):
        with pytest.raises(RuntimeError) as here:
            torch.ger(numbers("cpu", 2, columns), numbers("cpu", 2))
        with pytest.raises(type(here.value)):
            torch.ger(numbers(DEVICE, 2, columns), numbers(DEVICE, 2))
        with pytest.raises(RuntimeError):
            numbers(DEVICE, 3, columns) @ numbers(DEVICE, columns + 1, 2)
    assert not {"aten::ger", "aten::outer", "aten::mm", "aten::matmul"} & set(tripped())


@pytest.mark.ci
def test_an_operator_whose_inference_takes_too_long_runs_at_once() -> None:
    original = torch.empty
    inferred = 0

    def slow(self: torch.Tensor, *_: object) -> torch.Tensor:
        nonlocal inferred
        inferred += 1
        end = time.monotonic() + 1.1 * SLOW_S
        while time.monotonic() < end:
            pass
        return original(self.shape, device="meta")

    with meta_kernel("erfinv", slow):
        for rows in range(2, 2 + ROW):
            expect_equal(numbers("cpu", rows).erfinv(), numbers(DEVICE, rows).erfinv())
        assert "aten::erfinv" in tripped()
        until_then = inferred
        expect_equal(numbers("cpu", 99).erfinv(), numbers(DEVICE, 99).erfinv())
        assert inferred == until_then
