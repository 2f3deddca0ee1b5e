# SPDX-License-Identifier: Apache-2.0
"""The same lines on the CPU and on the device: `same(f)` calls f(device) for both and compares."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

DEVICE = "remote_accelerator:0"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the values, on the CPU: equal for equal bits, NaN too."""
    here = tensor.detach().cpu()
    if here.is_complex():
        here = torch.view_as_real(here)
    return torch.cat([here.reshape(-1)]).view(torch.uint8)  # cat: of stride 1 whatever it was


def expect_equal(expected: Any, found: Any) -> None:
    """Leaf by leaf: tensors in dtype, shape and bits, all else by =="""
    pairs = list(zip(tree_leaves(expected), tree_leaves(found), strict=True))
    for number, (a, b) in enumerate(pairs):
        if isinstance(a, torch.Tensor):
            assert isinstance(b, torch.Tensor), number
            assert (a.dtype, a.shape) == (b.dtype, b.shape), number
            assert torch.equal(bits(a), bits(b)), f"result {number}: {a} on the CPU, {b.cpu()}"
        else:
            assert a == b, number


def same(f: Callable[[str], Any]) -> None:
    expect_equal(f("cpu"), f(DEVICE))


def numbers(device: str, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Reproducible values, drawn on the CPU."""
    generator = torch.Generator().manual_seed(sum(sizes) + 1)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*sizes, generator=generator).to(dtype).to(device)
    return torch.randint(-9, 9, sizes, generator=generator).to(dtype).to(device)


def integers(device: str, *sizes: int) -> torch.Tensor:
    return numbers(device, *sizes, dtype=torch.int64)
