# SPDX-License-Identifier: Apache-2.0
"""Load plans from traces: what a plan can say of the operators that a load recorded.

    Region   a box of one tensor of a file, its last two dimensions perhaps swapped
    Content  a storage's elements in order, as regions one after another along a dimension
    Plan     the contents of a model's storages, named after the files' tensors; `open_model` takes
             it. What of a checkpoint a class has, and how it calls it, leaves no trace in it

A trace is what `_device.traces` gives: how a storage's bytes come about, and a view of them. A
Content is found by composing views with views: slices, transposed matrices, concatenations, stacks,
copies, and one cast. All else is Inexpressible, and is computed by the daemon from its sources.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# A storage of more pieces is computed and not planned: each piece is read on its own.
PIECES_MAX = 4096
COPIES = {"aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous"}
PADS = {"aten::pad", "aten::constant_pad_nd"}  # by nothing, as transformers pads tied biases
FLOATS = {"float16", "bfloat16", "float32", "float64"}
PLAIN = FLOATS | {"bool", "uint8", "int8", "int16", "int32", "int64"}  # djinnd has them all
INT8_FLOATS = FLOATS - {"float64"}
INT8_COLUMNS_MAX = 1 << 20  # kernel/srg/weight_form.h
# What the files hold beside what a model takes is loaded with it up to this part of the plan's
# elements, so that the classes of one checkpoint are one model of djinnd. More would be waste.
BESIDE_PART = 1 / 8

Sizes = tuple[int, ...]
Trace = tuple[Any, ...]  # (what, ...) of _device.traces


class Inexpressible(Exception):
    """No load plan says this; the message says why."""


@dataclass(frozen=True)
class View:
    """A view of a storage: dtype, sizes, strides and offset in elements."""

    dtype: str
    sizes: Sizes
    strides: Sizes
    offset: int = 0

    @staticmethod
    def of(traced: tuple[str, Sequence[int], Sequence[int], int]) -> "View":
        dtype, sizes, strides, offset = traced
        return View(dtype, tuple(sizes), tuple(strides), offset)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def contiguous(self) -> bool:
        return canonical(self) in ([], [(self.elements, 1)])

    def select(self, index: int) -> "View":
        """The first dimension's element `index`."""
        offset = self.offset + index * self.strides[0]
        return View(self.dtype, self.sizes[1:], self.strides[1:], offset)

    def permuted(self, order: Sequence[int]) -> "View":
        sizes, strides = (tuple(of[d] for d in order) for of in (self.sizes, self.strides))
        return View(self.dtype, sizes, strides, self.offset)


def row_major(sizes: Sequence[int]) -> Sizes:
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def canonical(view: View) -> list[tuple[int, int]]:
    """(size, stride) of the view's dimensions without those of size 1, neighbours that lie one in
    the other merged: views of the same elements in the same order have the same."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(view.sizes, view.strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


@dataclass(frozen=True)
class Region:
    """Elements [start, start + length) of each dimension of a tensor of a file, then its last two
    dimensions swapped if `transposed`."""

    file: int
    tensor: str
    dtype: str
    whole: Sizes
    starts: Sizes
    lengths: Sizes
    transposed: bool = False

    @property
    def sizes(self) -> Sizes:
        return swapped(self.lengths) if self.transposed else self.lengths

    def box(self, starts: Sizes, lengths: Sizes, transposed: bool) -> "Region":
        """A box of this one, in its own order of dimensions."""
        if self.transposed:
            starts, lengths = swapped(starts), swapped(lengths)
        moved = tuple(a + b for a, b in zip(self.starts, starts, strict=True))
        turned = self.transposed != transposed
        return replace(self, starts=moved, lengths=lengths, transposed=turned)

    @property
    def is_whole(self) -> bool:
        return self.lengths == self.whole and not self.transposed

    def piece(self) -> tuple[int, str, list[tuple[int, int, int]], bool]:
        slices = [
            (d, start, length)
            for d, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True))
            if length != self.whole[d]
        ]
        return self.file, self.tensor, slices, self.transposed


def swapped(sizes: Sizes) -> Sizes:
    return (*sizes[:-2], sizes[-1], sizes[-2])


def box_of(view: View, sizes: Sizes) -> tuple[Sizes, Sizes] | None:
    """The box of a row-major tensor whose elements, in order, are those of the view."""
    starts, lengths = [0] * len(sizes), [1] * len(sizes)
    left = canonical(view)
    for d, step in reversed(list(enumerate(row_major(sizes)))):
        if sizes[d] == 1:
            continue
        starts[d] = view.offset // step % sizes[d]
        if not left or left[-1][1] != step:
            continue
        size = left.pop()[0]
        if size <= sizes[d] - starts[d]:
            lengths[d] = size
        elif starts[d] == 0 and size % sizes[d] == 0:
            lengths[d] = sizes[d]
            left.append((size // sizes[d], step * sizes[d]))
        else:
            return None
    return None if left else (tuple(starts), tuple(lengths))


def region_of(view: View, region: Region) -> Region | None:
    """The view, with offsets in the region's elements, as a region."""
    box = box_of(view, region.sizes)
    if box is not None:
        return region.box(*box, transposed=False)
    if len(view.sizes) < 2 or len(region.sizes) < 2:
        return None
    turned = view.permuted([*range(len(view.sizes) - 2), len(view.sizes) - 1, len(view.sizes) - 2])
    box = box_of(turned, region.sizes)
    if box is None or box[1][-2:] != turned.sizes[-2:]:
        return None
    return region.box(*box, transposed=True)


@dataclass(frozen=True)
class Content:
    """The elements of a storage, or of a view, in order. Along dimension 0 the regions simply
    follow each other, and may be of any sizes."""

    dtype: str
    regions: tuple[Region, ...]
    dimension: int = 0

    @property
    def elements(self) -> int:
        return sum(math.prod(region.sizes) for region in self.regions)

    def cast(self, dtype: str) -> "Content":
        if dtype == self.dtype:
            return self
        if any(region.dtype != self.dtype for region in self.regions):
            raise Inexpressible("its elements are cast twice")
        if not {dtype, self.dtype} <= FLOATS:
            raise Inexpressible(f"it is cast from {self.dtype} to {dtype}")
        return replace(self, dtype=dtype)

    @property
    def name(self) -> str:
        """The same for equal contents alone; a tensor's own, for that as it is in its file."""
        first = self.regions[0]
        plain = first.tensor if first.file == 0 else f"{first.file}/{first.tensor}"
        if len(self.regions) == 1 and first.is_whole and first.dtype == self.dtype:
            return plain
        return f"{plain}#{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    def sizes(self) -> Sizes:
        """The sizes of the destination that holds it."""
        first = self.regions[0].sizes
        if len(self.regions) == 1:
            return first
        others = [list(region.sizes) for region in self.regions]
        along = sum(sizes.pop(self.dimension) if sizes else 0 for sizes in others)
        if not first or any(sizes != others[0] for sizes in others):
            raise Inexpressible("its parts have different sizes")
        return (*others[0][: self.dimension], along, *others[0][self.dimension :])

    def is_matrix(self) -> bool:
        """Whether it can be int8, and is named as weights of products and embeddings are."""
        sizes = self.sizes()
        return (
            self.dtype in INT8_FLOATS
            and len(sizes) == 2
            and math.prod(sizes) > 0
            and sizes[1] <= INT8_COLUMNS_MAX
            and (self.dimension == 0 or len(self.regions) == 1)
            and not any(one.transposed for one in self.regions)
            and all(one.tensor.endswith(".weight") for one in self.regions)
            and not any(one.tensor.endswith(".gate.weight") for one in self.regions)  # routers'
        )


def joined(contents: Iterable[Content], dtype: str) -> Content:
    regions = tuple(itertools.chain.from_iterable(plain(one).regions for one in contents))
    if len(regions) > PIECES_MAX:
        raise Inexpressible("it has too many parts")
    return Content(dtype, regions)


def plain(content: Content) -> Content:
    if content.dimension != 0 and len(content.regions) > 1:
        raise Inexpressible("it joins what is joined along a later dimension")
    return content


class Tracer:
    """Contents of traces. `headers[file][tensor]` is a tensor's (dtype, sizes)."""

    def __init__(self, headers: Sequence[dict[str, tuple[str, Sizes]]]) -> None:
        self._headers = headers
        self._known: dict[int, Content | Inexpressible] = {}
        self._kept: list[Trace] = []  # so that no id is used twice

    def storage(self, what: Trace) -> Content:
        """All elements of a storage, in order."""
        found = self._known.get(id(what))
        if found is None:
            try:
                found = self._find(what)
            except Inexpressible as error:
                found = error
            self._kept.append(what)
            self._known[id(what)] = found
        if isinstance(found, Inexpressible):
            raise found
        return found

    def view(self, traced: tuple[Trace, Any], order: Sequence[int] | None = None) -> Content:
        """The elements of a view of a storage, in the view's order or with its dimensions in
        another."""
        what, raw = traced
        view = View.of(raw)
        content = self.storage(what)
        if view.dtype != content.dtype:
            raise Inexpressible("its bytes are read as another dtype")
        return viewed(content, view if order is None else view.permuted(order))

    def _find(self, what: Trace) -> Content:
        kind = what[0]
        if kind == "source":
            return tensor_of(what[1], what[2], self._headers[what[1]][what[2]])
        if kind != "op":
            raise Inexpressible(f"it depends on what is not in the files ({kind})")
        return self._operator(*what[1:])

    def _operator(
        self,
        name: str,
        arguments: list[tuple[str, Any]],
        operands: list[tuple[Trace, Any]],
        sizes: list[int],
        strides: list[int],
        dtype: str,
    ) -> Content:
        view = View(dtype, tuple(sizes), tuple(strides))
        if name in COPIES or (name in PADS and not any(arguments[1][1])):
            return self._copied(operands[-1], view)
        if name in ("aten::cat", "aten::stack") and view.contiguous:
            numbers = arguments[0][1][1]
            dimension = arguments[1][1] if len(arguments) > 1 else 0
            parts = [operands[number] for number in numbers]
            return self._joined(parts, dimension % len(sizes), name == "aten::stack", dtype)
        raise Inexpressible(f"it is made by {name}")

    def _copied(self, operand: tuple[Trace, Any], product: View) -> Content:
        order = sorted(range(len(product.sizes)), key=lambda d: -product.strides[d])
        if not product.permuted(order).contiguous or len(operand[1][1]) != len(order):
            raise Inexpressible("it is copied into a tensor with gaps, or made larger")
        if list(operand[1][1]) != list(product.sizes):
            raise Inexpressible("it is made larger by a copy")
        return self.view(operand, order).cast(product.dtype)

    def _joined(
        self, operands: list[tuple[Trace, Any]], dimension: int, stack: bool, dtype: str
    ) -> Content:
        views = [View.of(view) for _, view in operands]
        used = [i for i, view in enumerate(views) if view.elements]
        if dimension == 0:
            return joined((self.view(operands[i]).cast(dtype) for i in used), dtype)
        whole = [self.view(operands[i]).cast(dtype) for i in used]
        sizes = [views[i].sizes for i in used]
        alike = [
            len(one.regions) == 1 and one.regions[0].sizes == size
            for one, size in zip(whole, sizes, strict=True)
        ]
        if not stack and all(alike):
            return Content(dtype, tuple(one.regions[0] for one in whole), dimension)
        rounds = math.prod(sizes[0][:dimension])
        if rounds * len(whole) > PIECES_MAX:
            raise Inexpressible("it is interleaved in too many parts")
        shares = [one.elements // rounds for one in whole]
        return joined(
            (
                viewed(one, View(dtype, (share,), (1,), turn * share))
                for turn in range(rounds)
                for one, share in zip(whole, shares, strict=True)
            ),
            dtype,
        )


def viewed(content: Content, view: View) -> Content:
    """A view of a content, as a content."""
    if view.contiguous and view.offset == 0 and view.elements == content.elements:
        return content
    return Content(content.dtype, tuple(_regions(plain(content).regions, view)))


def _regions(regions: tuple[Region, ...], view: View) -> Iterator[Region]:
    """The regions of a view over regions that follow each other."""
    last = sum((size - 1) * stride for size, stride in zip(view.sizes, view.strides, strict=True))
    if last < 0 or any(stride < 0 for stride in view.strides) or view.elements == 0:
        raise Inexpressible("it is a view of nothing, or runs backwards")
    start = 0
    for region in regions:
        count = math.prod(region.sizes)
        if start <= view.offset and view.offset + last < start + count:
            local = replace(view, offset=view.offset - start)
            found = region_of(local, region)
            if found is not None:
                yield found
                return
            break
        start += count
    yield from _split(regions, view)


def _split(regions: tuple[Region, ...], view: View) -> Iterator[Region]:
    """Splits a view by the regions' borders where it is a run of elements, else by its first
    dimension."""
    if view.contiguous:
        yield from _run(regions, view.offset, view.elements)
        return
    while view.sizes[0] == 1:
        view = view.select(0)
    if len(view.sizes) == 1 or view.sizes[0] > PIECES_MAX:
        raise Inexpressible("it takes elements one by one")
    for index in range(view.sizes[0]):
        yield from _regions(regions, view.select(index))


def _run(regions: tuple[Region, ...], first: int, count: int) -> Iterator[Region]:
    start = 0
    for region in regions:
        size = math.prod(region.sizes)
        low, high = max(first, start), min(first + count, start + size)
        if low < high:
            found = region_of(View(region.dtype, (high - low,), (1,), low - start), region)
            if found is None:
                raise Inexpressible("it cuts a row")
            yield found
        start += size


# --- plans ----------------------------------------------------------------------------------------


def tensor_of(file: int, tensor: str, header: tuple[str, Sizes]) -> Content:
    """A tensor of a file as it is."""
    dtype, sizes = header
    return Content(dtype, (Region(file, tensor, dtype, sizes, (0,) * len(sizes), sizes),))


@dataclass
class Plan:
    """Destinations, in an order that only names decide. is_int8: matrices are in that form; which
    are some, of a plan without destinations djinnd says by the same rule."""

    destinations: dict[str, Content] = field(default_factory=dict)
    is_int8: bool = False

    def add(self, content: Content) -> str:
        """Returns the name that it has in the model."""
        content.sizes()  # raises Inexpressible
        self.destinations[content.name] = content
        return content.name

    def add_beside(self, headers: Sequence[dict[str, tuple[str, Sizes]]]) -> None:
        """All other tensors of the files, if they are few: cast as those are that are here."""
        taken = {(r.file, r.tensor) for one in self.destinations.values() for r in one.regions}
        beside = [
            tensor_of(file, tensor, header)
            for file, tensors in enumerate(headers)
            for tensor, header in tensors.items()
            if (file, tensor) not in taken and math.prod(header[1])
        ]
        here = sum(one.elements for one in self.destinations.values())
        if sum(one.elements for one in beside) > here * BESIDE_PART:
            return
        if any(one.dtype not in PLAIN for one in beside):
            return
        casts = {(one.regions[0].dtype, one.dtype) for one in self.destinations.values()}
        to = dict(casts)
        if len(to) < len(casts):  # some are cast and some are not: which, the class decides
            return
        for one in beside:
            self.add(one.cast(to.get(one.dtype, one.dtype)))

    def own_names(self, headers: Sequence[dict[str, tuple[str, Sizes]]]) -> dict[str, str] | None:
        """The tensors' names in the files, where the plan takes all of the files' as they are. So
        does djinnd without a plan, and whoever sends none shares that model."""
        whole = {
            one.name: one
            for file, tensors in enumerate(headers)
            for one in (tensor_of(file, tensor, header) for tensor, header in tensors.items())
        }
        if self.destinations != whole:
            return None
        names = {name: one.regions[0].tensor for name, one in whole.items()}
        return names if len(set(names.values())) == len(names) else None

    def for_device(self) -> list[Any]:
        """The plan as `_device.open_model` takes it."""
        return [
            (
                name,
                content.dtype,
                list(content.sizes()),
                content.dimension,
                [region.piece() for region in content.regions],
                self.is_int8 and content.is_matrix(),
            )
            for name, content in sorted(self.destinations.items())
        ]
