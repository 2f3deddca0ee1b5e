# SPDX-License-Identifier: Apache-2.0
"""Views, writes through them, and out=."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_map_only
from twins import DEVICE, integers, numbers, same


def test_writes_through_views_of_views_reach_the_base() -> None:
    def run(device: str) -> object:
        base = torch.arange(60.0, device=device).view(3, 4, 5)
        view = base[1:].transpose(0, 2)[::2].unsqueeze(0)
        view.add_(100)
        base[0].mul_(2)
        base.select(1, 2).narrow(0, 1, 2).sub_(7)
        base.diagonal(dim1=0, dim2=1).zero_()
        base.permute(2, 0, 1)[1:3, 1] = -1
        view[0, 1].clamp_(max=100)
        return base, view

    same(run)


def test_every_kind_of_view_shows_the_bytes_of_its_base() -> None:
    def run(device: str) -> object:
        a = torch.arange(60.0, device=device).view(3, 4, 5)
        views = [
            *a.chunk(3, 2),
            *a.unbind(1),
            *a.split([1, 3], 1),
            a.unfold(2, 3, 1),
            a.movedim(0, 2),
            a[0].expand(7, 4, 5),
            a.permute(2, 0, 1),
            a.view(torch.int32),
            a.as_strided((3, 3), (2, 1), 5),
            a.swapaxes(0, 1),
            a.view(4, 15).t(),
            a[:, None, 1:4:2],
            a.narrow(2, 1, 3),
            a.squeeze(),
            a.mT,
            a.unflatten(2, (5, 1)),
            a.real,
            a.detach(),
            a[..., -1],
            a.view_as(a),
            a.T if a.dim() == 2 else a,
        ]
        a.mul_(3)
        return views, [view.stride() for view in views], [view.storage_offset() for view in views]

    same(run)


def test_overlapping_views_can_be_read_and_not_written() -> None:
    def run(device: str) -> object:
        base = torch.arange(10.0, device=device)
        windows = base.as_strided((4, 4), (1, 1))
        base[3] = 100
        with pytest.raises(RuntimeError):
            base[:1].expand(4).add_(1)
        return windows, windows.sum(), windows @ windows, windows.clone().stride()

    same(run)


def test_views_as_another_dtype_share_bytes() -> None:
    def run(device: str) -> object:
        a = numbers(device, 4, 6)
        raw, halves, doubles = a.view(torch.uint8), a.view(torch.int16), a.view(torch.float64)
        raw[0, 0] = 1
        halves[1] += 3
        pairs = torch.view_as_complex(a.view(4, 3, 2))
        pairs.mul_(2)
        return a, raw, halves, doubles, torch.view_as_real(pairs)

    same(run)


@pytest.mark.parametrize("resize", [False, True])
def test_out_is_filled_and_an_empty_one_grows(resize: bool) -> None:
    def run(device: str) -> object:
        def out(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(0 if resize else sizes, dtype=dtype, device=device)

        a, b = numbers(device, 4, 5), numbers(device, 4, 5) + 1
        sort = (out(4, 5), out(4, 5, dtype=torch.int64))
        torch.sort(a, out=sort)
        largest = (out(4), out(4, dtype=torch.int64))
        torch.max(a, 1, out=largest)
        return (
            torch.add(a, b, out=out(4, 5)),
            torch.mm(a, b.t(), out=out(4, 4)),
            torch.cat([a, b], out=out(8, 5)),
            torch.stack([a, b], out=out(2, 4, 5)),
            torch.sum(a, 0, out=out(5)),
            torch.arange(5, out=out(5, dtype=torch.int64)),
            torch.linspace(0, 1, 4, out=out(4)),
            torch.index_select(a, 1, torch.tensor([1, 3, 0], device=device), out=out(4, 3)),
            sort,
            largest,
        )

    same(run)


def test_out_writes_through_a_view_and_over_its_operand() -> None:
    def run(device: str) -> object:
        base, a = torch.zeros(5, 4, device=device), numbers(device, 4, 5)
        torch.add(a, 1, out=base.t())
        torch.mul(a, a, out=a)
        torch.mm(a, base, out=(square := torch.empty(4, 4, device=device)))
        return base, a, square

    same(run)


def test_out_of_a_lesser_dtype_is_refused() -> None:
    def run(device: str) -> object:
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(numbers(device, 3), 1, out=torch.empty(3, dtype=torch.int64, device=device))

    same(run)


# By operator and what the CPU says of a wider dtype.
OTHERWISE = {
    ("abs", torch.complex64): "taken",  # and refused by the meta kernel
    ("mv", torch.float32): "refused",  # as addmv() of out itself, which there is none of here
    ("mv", torch.int64): "refused",
    ("mv", torch.complex64): "refused",
}
WIDER = {
    torch.float32: torch.float64,
    torch.int64: torch.float64,
    torch.bool: torch.int64,
    torch.complex64: torch.complex128,
}


def outs_of(op: OpInfo, dtype: torch.dtype) -> Iterator[tuple[SampleInput, list[torch.Tensor]]]:
    """A sample of the operator, and its results with one of a wider dtype, by each in turn."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 1):
        result = op(sample.input, *sample.args, **sample.kwargs)
        results = list(result) if isinstance(result, tuple | list) else [result]
        if not all(isinstance(one, torch.Tensor) for one in results):
            continue
        for i, one in enumerate(results):
            if one.dtype in WIDER:
                yield sample, [*results[:i], one.to(WIDER[one.dtype]), *results[i + 1 :]]


def takes(op: OpInfo, sample: SampleInput, outs: list[torch.Tensor], device: str) -> bool:
    def there(value: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(device), value)

    out = [torch.zeros_like(one, device=device) for one in outs]
    try:
        op(
            there(sample.input),
            *there(sample.args),
            **there(sample.kwargs),
            out=out[0] if len(out) == 1 else tuple(out),
        )
    except NotImplementedError:
        raise
    except RuntimeError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", WIDER)
def test_out_of_a_wider_dtype_is_taken_where_the_cpu_takes_it(dtype: torch.dtype) -> None:
    answers = Counter[bool]()
    for op in op_db:
        offered = op.supports_out and not op.name.startswith("sparse")
        if not offered or dtype not in op.supported_dtypes("cpu"):
            continue
        for sample, outs in outs_of(op, dtype):
            taken = takes(op, sample, outs, "cpu")
            try:
                here = takes(op, sample, outs, DEVICE)
            except NotImplementedError:
                continue
            known = OTHERWISE.get((op.name, dtype))
            assert here == taken if known is None else (known == "taken") == taken != here, op.name
            answers[taken] += 1
    assert answers[True] > 50 and answers[False] > 50, answers


def test_indexing_reads_and_writes_as_on_the_cpu() -> None:
    def run(device: str) -> object:
        a, rows = numbers(device, 5, 6), torch.tensor([1, 3, 0], device=device)
        mask = a > 0
        read = [
            a[mask],
            a[rows],
            a[rows, rows],
            a[:, rows],
            a[None, ..., 0],
            a[mask.any(1)],
            a[-1],
            a[a.argmax() // 6],
            a[[1, 2]],
            a[torch.tensor([True, False, True, False, True])],
            a[rows.cpu()],
            a[torch.tensor(2)],
            a[rows[0], 1:],
            a[:, mask[0]],
        ]
        writes = [
            (mask, 0.0),
            (rows, numbers(device, 3, 6)),
            ((rows, rows), 5.0),
            ((slice(1, None), slice(None, None, 2)), 5),
            ((..., -1), numbers(device, 5)),
            (mask, numbers(device, int(mask.sum()))),
            ((0, 0), 2.5),
            (rows[0], 1),
            ([0, 2], 1),
            ((slice(None), [0, 2]), numbers("cpu", 5, 2)),
            (mask.cpu(), 3),
        ]
        written = []
        for index, value in writes:
            written.append(a.clone())
            written[-1][index] = value
        added = a.clone()
        added.index_put_((rows, rows), numbers(device, 3), accumulate=True)
        added[rows] += 1
        return read, written, added

    same(run)


def test_shapes_that_depend_on_values() -> None:
    def run(device: str) -> object:
        a, f = integers(device, 40), numbers(device, 6, 5)
        return (
            a.nonzero(),
            f.nonzero(as_tuple=True),
            torch.where(f > 0),
            a.unique(),
            f.masked_select(f > 0),
            a.unique(return_inverse=True, return_counts=True),
            a.unique_consecutive(),
            torch.bincount(a.abs()),
            torch.unique(f[:, :2] > 0, dim=0),
            torch.argwhere(f > 1),
            f[f > 0].sum(),
            torch.repeat_interleave(
                torch.arange(4, device=device), torch.tensor([1, 0, 3, 2], device=device)
            ),
            torch.isin(a, torch.tensor([1, 2], device=device)),
            a[a.nonzero().squeeze(1)[:2]],
            (f > 9).nonzero(),
            f[f > 9],
        )

    same(run)
