# SPDX-License-Identifier: Apache-2.0
"""Programs and what they run on: refs, which are tensors that stay in djinnd, and sequences."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np

from . import _client, arrays
from .arrays import Array
from .shapes import Expr, bind_symbols, evaluate

if TYPE_CHECKING:
    from ._client import Handle
    from .session import Session

Where = Literal["array", "ref"]


def refuse_foreign(session: "Session", thing: Any, what: str) -> None:
    """Handles of two sessions may look alike."""
    if thing._session is not session:
        raise ValueError(f"{what} belongs to another session.")


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Ref:
    """A tensor that lives in djinnd until it is released, its session closes, or nobody here
    remembers it."""

    def __init__(
        self,
        session: "Session",
        handle: "Handle",
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> None:
        self._session = session
        self._handle: Handle | None = handle
        self.dtype = dtype
        self.shape = tuple(shape)
        self.strides = tuple(strides) if strides is not None else contiguous_strides(shape)
        self.offset = offset

    @property
    def handle(self) -> "Handle":
        if self._handle is None:
            raise ValueError("the ref was released")
        return self._handle

    def __reduce__(self) -> Never:
        raise TypeError("a djinn.Ref lives in djinnd: copy what numpy() gives")

    @property
    def is_whole(self) -> bool:
        """Whether the tensor lies in its storage from the first byte on, without gaps."""
        return self.offset == 0 and self.strides == contiguous_strides(self.shape)

    def numpy(self, *index: int | slice) -> Array:
        """The elements as an array, or those of a slice: `ref.numpy(0, slice(8, 16))`.

        Only what was asked for crosses; what is larger than staging comes in several pieces.
        """
        shape, strides, offset = _narrow(self.shape, self.strides, self.offset, index)
        out = np.empty(shape, arrays.carrier(self.dtype))
        if out.nbytes != 0:
            view = (self.dtype, list(shape), list(strides), offset)
            self._session.raw.read(self.handle, *view, out)
        return out

    def release(self) -> None:
        """Gives the memory back now; harmless when that was done before, or its session is gone."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._session.closed:
            self._session.raw.release(handle)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            self._session.raw.release_later(handle)

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", released"
        return f"djinn.Ref({self.dtype}{list(self.shape)}{state})"


def _narrow(
    shape: Sequence[int], strides: Sequence[int], offset: int, index: Sequence[int | slice]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset of a view that basic indexing selects."""
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} indices for {len(shape)} dimensions")
    sizes: list[int] = []
    steps: list[int] = []
    for size, stride, one in zip(shape, strides, index, strict=False):
        if isinstance(one, slice):
            start, stop, step = one.indices(size)
            if step < 1:
                raise IndexError("a slice must go forward")
            sizes.append(len(range(start, stop, step)))
            steps.append(stride * step)
            offset += start * stride
        else:
            if not -size <= one < size:
                raise IndexError(f"index {one} is outside of a dimension of {size}")
            offset += (one % size) * stride
    rest = len(index)
    return (*sizes, *shape[rest:]), (*steps, *strides[rest:]), offset


class SequenceGroup:
    """A sequence group: the growing state (keys and values of attention) of up to 32 rows."""

    def __init__(self, session: "Session", handle: "Handle") -> None:
        self._session = session
        self.handle = handle
        self._dropped = False

    def crop(self, length: int) -> None:
        """Forgets the tokens of every row from `length` on."""
        self._session.raw.crop(self.handle, length)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row r becomes what row rows[r] was, as a beam search wants it. The group must have been
        made as reorderable."""
        self._session.raw.reorder(self.handle, rows)

    def drop(self) -> None:
        """Gives its memory back; harmless when that was done before, or its session is gone."""
        if not self._dropped and not self._session.closed:
            self._session.raw.drop_sequence(self.handle)
        self._dropped = True

    def __enter__(self) -> "SequenceGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


class Program:
    """A graph that runs on arrays and refs: `program(x=array)["y"]`."""

    def __init__(self, session: "Session", program: _client.Program) -> None:
        self._session = session
        self._program = program
        self.name = program.name
        self.symbols = program.symbols
        self.inputs: dict[str, tuple[str, list[Expr]]] = {
            name: (dtype, sizes) for name, dtype, sizes in program.inputs
        }
        self.outputs = [
            (name or str(i), dtype, sizes) for i, (name, dtype, sizes) in enumerate(program.outputs)
        ]

    def __call__(
        self,
        *,
        symbols: Mapping[str, int] | None = None,
        sequence: SequenceGroup | None = None,
        outputs: Where | Mapping[str, Where] = "array",
        **inputs: Any,
    ) -> dict[str, Any]:
        """Runs once and waits. Inputs are arrays or refs by name; symbols are read off their
        shapes, and given by name where shapes do not tell. `outputs` says of all, or by name,
        whether an output comes back as an array or stays in djinnd as a ref. With a mapping, only
        the outputs in it are made.
        """
        if sequence is not None:
            refuse_foreign(self._session, sequence, "The sequence group")
        bound = {name: self._input(name, value) for name, value in inputs.items()}
        shapes = {n: v.shape for n, v in bound.items()}
        declared = [(self.inputs[name][1], shape) for name, shape in shapes.items()]
        values = bind_symbols(self.symbols, symbols or {}, declared)
        self._check_shapes(shapes, values)
        wanted = self._wanted(outputs)
        results = self._session.raw.run(
            self._program,
            values,
            {n: v.handle if isinstance(v, Ref) else v for n, v in bound.items()},
            [self._place(i, where, values) for i, where in enumerate(wanted)],
            sequence.handle if sequence is not None else None,
        )
        return {
            self.outputs[i][0]: self._output(result, where)
            for i, (result, where) in enumerate(zip(results, wanted, strict=True))
            if where is not None
        }

    def _input(self, name: str, value: Any) -> Any:
        if name not in self.inputs:
            raise TypeError(f"the program has no input {name!r}; it has {list(self.inputs)}")
        dtype, _ = self.inputs[name]
        if not isinstance(value, Ref):
            return arrays.checked(value, dtype, f"input {name!r}")
        refuse_foreign(self._session, value, f"Input {name!r}")
        if arrays.carrier(value.dtype) != arrays.carrier(dtype) or not value.is_whole:
            raise TypeError(f"input {name!r} must be a whole ref of {dtype}; got {value}")
        return value

    def _check_shapes(self, shapes: Mapping[str, Sequence[int]], values: Sequence[int]) -> None:
        for name, shape in shapes.items():
            wanted = tuple(evaluate(expr, values) for expr in self.inputs[name][1])
            if tuple(shape) != wanted:
                raise ValueError(f"input {name!r} must have shape {wanted}, and has {shape}")

    def _wanted(self, outputs: Where | Mapping[str, Where]) -> list[Where | None]:
        """Where each output goes."""
        names = [name for name, _, _ in self.outputs]
        by_name = dict.fromkeys(names, outputs) if isinstance(outputs, str) else dict(outputs)
        for name, where in by_name.items():
            if name not in names:
                raise ValueError(f"the program has no output {name!r}; it has {names}")
            if where not in ("array", "ref"):
                raise ValueError(f'an output goes to "array" or "ref", not {where!r}')
        return [by_name.get(name) for name in names]

    def _place(self, index: int, where: Where | None, values: Sequence[int]) -> int | str | None:
        """Where the daemon puts an output. One of unknown size, or too large for staging, goes
        through a ref."""
        name, dtype, sizes = self.outputs[index]
        if where is None:
            return None
        if where == "ref" or dtype is None or sizes is None:
            return "ref"
        shape = [evaluate(expr, values) for expr in sizes]
        if min(shape, default=0) < 0:
            raise ValueError(f"output {name!r} cannot have the shape {shape} that its graph claims")
        elements = math.prod(shape)
        nbytes = elements * arrays.carrier(dtype).itemsize
        return nbytes if nbytes <= self._session.staging_bytes // 2 else "ref"

    def _output(self, result: "_client.RunOutput", where: Where | None) -> Any:
        dtype, sizes, strides, offset, data, handle = result
        if handle is None:
            return arrays.from_bytes(data, dtype, sizes)
        ref = Ref(self._session, handle, dtype, sizes, strides, offset)
        if where == "ref":
            return ref
        array = ref.numpy()
        ref.release()
        return array
