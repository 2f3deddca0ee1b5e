# SPDX-License-Identifier: Apache-2.0
"""The layout that a result is said to have is the CPU's: kernels that come after choose by it, and
other strides would give other roundings."""

import sys
import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from twins import numbers

Op = Callable[[torch.Tensor], torch.Tensor]

LAYOUTS: dict[str, Op] = {
    "contiguous": lambda t: t,
    "swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "heads": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "columns": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda t: torch.cat([t, t], 3)[..., : t.shape[3]],
    "expanded": lambda t: t[:1].expand(t.shape),
    "reversed": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


def ones(t: torch.Tensor, *sizes: int) -> torch.Tensor:
    return torch.ones(sizes, device=t.device)


OPERATORS: dict[str, Op] = {
    "add": lambda t: t.contiguous() + t,
    "add of a number": lambda t: 1 + t,
    "addcmul": lambda t: torch.addcmul(t, t, t),
    "all": lambda t: (t > 9).all(),
    "avg_pool2d": lambda t: F.avg_pool2d(t, 2),
    "batch_norm": lambda t: F.batch_norm(t, ones(t, t.shape[1]), ones(t, t.shape[1])),
    "batch_norm of one place": lambda t: F.interpolate(
        F.batch_norm(F.adaptive_avg_pool2d(t, 1), ones(t, t.shape[1]), ones(t, t.shape[1])),
        size=(4, 4),
        mode="bilinear",
    ),
    "bfloat16": lambda t: t.bfloat16(),
    "cat": lambda t: torch.cat([t, t], 1),
    "channel_shuffle": lambda t: F.channel_shuffle(t, 2),
    "clone": torch.clone,
    "conv1d": lambda t: F.conv1d(t[:, :, 0], ones(t, 4, t.shape[1], 2)),
    "conv1d by a turned weight": lambda t: F.conv1d(
        t[:, :, 0], ones(t, 4, 2, t.shape[1]).transpose(1, 2)
    ),
    "conv2d": lambda t: F.conv2d(t, ones(t, 4, t.shape[1], 2, 2)),
    "conv2d of groups": lambda t: F.conv2d(
        t, ones(t, t.shape[1], 1, 3, 3), ones(t, t.shape[1]), padding=1, groups=t.shape[1]
    ),
    "conv2d of float64": lambda t: F.conv2d(t.double(), ones(t, 4, t.shape[1], 2, 2).double()),
    "conv_transpose1d": lambda t: F.conv_transpose1d(t[:, :, 0], ones(t, t.shape[1], 4, 2)),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t, ones(t, t.shape[1], 4, 2, 2)),
    "bitwise": lambda t: ~((t > 0) & (t.contiguous() <= 1)) | (t == 0.5),
    "bmm": lambda t: torch.bmm(t[0], t[0].transpose(-1, -2)),
    "cumsum": lambda t: t.cumsum(1),
    "div of two layouts": lambda t: t / (t.contiguous() + 9),
    "div of a number": lambda t: 2 / (t + 9),
    "eq": lambda t: t == t.contiguous(),
    "flip": lambda t: t.flip(1),
    "floor_divide": lambda t: t // 2.0,
    "gather": lambda t: t.gather(1, torch.zeros_like(t, dtype=torch.int64)),
    "gelu": F.gelu,
    "group_norm": lambda t: F.group_norm(t, 2),
    "hardswish": F.hardswish,
    "instance_norm of bfloat16": lambda t: F.instance_norm(t.bfloat16()),
    "interpolate": lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"),
    "isnan": torch.isnan,
    "layer_norm": lambda t: F.layer_norm(t, (t.shape[-1],)),
    "linear": lambda t: F.linear(t, ones(t, 3, t.shape[-1])),
    "linear with a bias": lambda t: F.linear(t, ones(t, 3, t.shape[-1]), ones(t, 3)),
    "linear of a matrix": lambda t: F.linear(t[0, 0], ones(t, 3, t.shape[-1]), ones(t, 3)),
    "masked_fill": lambda t: t.masked_fill(t > 0, 1.0),
    "matmul": lambda t: t @ t.transpose(-1, -2),
    "max_pool2d": lambda t: F.max_pool2d(t, 2),
    "mean": lambda t: t.mean(-1, keepdim=True),
    "mean of all": lambda t: t.mean(),
    "mean of two": lambda t: t.mean((1, -1)),
    "mul of integers": lambda t: t * torch.ones_like(t, dtype=torch.int64),
    "mul of other sizes": lambda t: t * t[:, :1],
    "pad": lambda t: F.pad(t, (1, 1)),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2),
    "pixel_shuffle to two channels": lambda t: F.pixel_shuffle(torch.cat([t, t], 1), 2),
    "pixel_unshuffle": lambda t: F.pixel_unshuffle(t, 2),
    "pow": lambda t: t**2,
    "relu": torch.relu,
    "rms_norm": lambda t: F.rms_norm(t, (t.shape[-1],)),
    "roll": lambda t: t.roll(1, 2),
    "roll of all": lambda t: t.roll(1),
    "rsub": lambda t: torch.rsub(t, t * 2),
    "scaled_dot_product_attention": lambda t: F.scaled_dot_product_attention(t, t, t),
    "attention with a mask": lambda t: F.scaled_dot_product_attention(
        t, t, t, ones(t, t.shape[2], t.shape[2]).bool().tril()
    ),
    "attention to narrower values": lambda t: F.scaled_dot_product_attention(t, t, t[..., :-1]),
    "silu": F.silu,
    "softmax": lambda t: t.softmax(1),
    "sub": lambda t: torch.sub(t, t.contiguous(), alpha=2),
    "sum": lambda t: t.sum(1),
    "where": lambda t: torch.where(t > 0, t, t * 2),
    "where of a number": lambda t: torch.where(t > 0, t, 0.0),
    "where of two layouts": lambda t: torch.where(t > 0, t.contiguous(), t),
    "zeros_like": torch.zeros_like,
}


def steps(t: torch.Tensor) -> list[int]:
    """Strides that place something."""
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size != 1]


@pytest.mark.parametrize("name", OPERATORS)
def test_a_results_layout_is_the_cpus(name: str, device: torch.device) -> None:
    apply = OPERATORS[name]
    for sizes in ((2, 4, 6, 6), (1, 4, 8, 8)):
        base = numbers("cpu", *sizes)
        for layout, lay in LAYOUTS.items():
            with torch.no_grad():
                here, there = apply(lay(base)), apply(lay(base.to(device)))
            assert steps(here) == steps(there), (layout, sizes)
            assert torch.equal(here, there.cpu()), (layout, sizes)


def test_the_shapes_of_a_layer_are_found_without_python(device: torch.device) -> None:
    """PyTorch has kernels in Python for them, which take longer than the layer."""
    weight, bias = numbers(device, 8, 8), numbers(device, 8)

    def layer(t: torch.Tensor) -> object:
        inner = F.silu(F.gelu(F.linear(t, weight, bias)) * 2 - 1)
        t = F.layer_norm(t + inner, (8,), bias, bias)
        kept = (t > 0) & (t != 1.0)
        return torch.bmm(t, t.transpose(1, 2)) / 3, t.mean(1), t.pow(2).neg(), kept.all()

    files: set[str] = set()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    layer(numbers(device, 3, 5, 8))
    of_another_length = numbers(device, 3, 7, 8)
    sys.setprofile(note)
    try:
        layer(of_another_length)
    finally:
        sys.setprofile(None)
    slow = ("_meta_registrations.py", "_refs", "_prims", "_decomp")
    assert not [one for one in files if any(name in one for name in slow)]
