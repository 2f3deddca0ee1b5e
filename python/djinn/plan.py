# SPDX-License-Identifier: Apache-2.0
"""Load plans: what a model's tensors are made of, said as data. Mirrors kernel/srg/load_plan.h."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Slice:
    """Elements [start, start + length) of one dimension."""

    dimension: int
    start: int
    length: int


@dataclass(frozen=True)
class Piece:
    """A tensor of one of the opened files, or slices of it, which may be transposed."""

    file: int
    tensor: str
    slices: tuple[Slice, ...] = ()
    transpose: bool = False


@dataclass(frozen=True)
class Destination:
    """A tensor of the model: pieces, cast to dtype, concatenated along one dimension. With the form
    "int8", a matrix of which 32 elements of a row are int8 and a scale."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]
    concat_dimension: int = 0
    form: str | None = None


@dataclass(frozen=True)
class Alias:
    """A second name of a destination: tied weights."""

    name: str
    destination: str


@dataclass(frozen=True)
class LoadPlan:
    """One without destinations means every tensor of the files, under its own name, as it is; or,
    where `matrices` is "int8", matrices of floats named "*.weight" in that form."""

    destinations: tuple[Destination, ...] = ()
    aliases: tuple[Alias, ...] = field(default=())
    matrices: str | None = None
