# SPDX-License-Identifier: Apache-2.0
"""The layout that a result is said to have is the CPU's: kernels that come after choose by it, and
other strides would give other roundings."""

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
    "addcmul": lambda t: torch.addcmul(t, t, t),
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
    "cumsum": lambda t: t.cumsum(1),
    "eq": lambda t: t == t.contiguous(),
    "flip": lambda t: t.flip(1),
    "floor_divide": lambda t: t // 2.0,
    "gather": lambda t: t.gather(1, torch.zeros_like(t, dtype=torch.int64)),
    "gelu": F.gelu,
    "group_norm": lambda t: F.group_norm(t, 2),
    "hardswish": F.hardswish,
    "interpolate": lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"),
    "isnan": torch.isnan,
    "layer_norm": lambda t: F.layer_norm(t, (t.shape[-1],)),
    "linear": lambda t: F.linear(t, ones(t, 3, t.shape[-1])),
    "masked_fill": lambda t: t.masked_fill(t > 0, 1.0),
    "matmul": lambda t: t @ t.transpose(-1, -2),
    "max_pool2d": lambda t: F.max_pool2d(t, 2),
    "mean": lambda t: t.mean(-1, keepdim=True),
    "pad": lambda t: F.pad(t, (1, 1)),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2),
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
    "softmax": lambda t: t.softmax(1),
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
