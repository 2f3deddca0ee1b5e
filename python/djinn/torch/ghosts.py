# SPDX-License-Identifier: Apache-2.0
"""One load: while transformers builds a model, its weights are tensors of files that nobody reads.

    Load      of one `from_pretrained`, and of those that it calls: files, sources, models
    Source    a tensor of a file, as transformers takes it from a checkpoint
    Ghost     what is known of a model that was loaded: sizes, whether djinnd had it already

transformers' own conversions run on sources, recorded and held back. When it has returned, the
traces of parameters and buffers become a load plan (plans.py), djinnd opens the model, and each
storage becomes a weight of it. What a plan cannot say is computed by djinnd from its sources, which
are a model of their own that is closed again.
"""

import errno
import itertools
import json
import math
import operator
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

import djinn
from djinn.errors import Error, RequestError
from djinn.session import milliseconds

from . import _device, gradients, interlock, plans
from .config import config
from .sizes import size_text
from .state import DEVICE

HEADER_BYTES_MAX = 100 << 20  # as djinnd's own parser has it
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# How many parameters transformers may build for the tensors of a checkpoint: it takes joined
# weights apart, and no file has tied ones and new heads. For one tensor it builds at most 3.7, in
# any model of the matrix; 5,000 take it less than a second.
PARAMETERS_A_TENSOR_MAX = 32
PARAMETERS_BESIDE_MAX = 5_000
# How many elements those, and the model's buffers, may have for the elements of a checkpoint: an
# untied head is as large as the embedding. Positions, masks and new heads come beside them.
ELEMENTS_AN_ELEMENT_MAX = 4
ELEMENTS_BESIDE_MAX = 1 << 27
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass
class Stats:
    """Counts of this process."""

    ghosts: int = 0
    resident: int = 0  # of those: djinnd had the weights already
    planned: int = 0  # storages that a load plan fills
    converted: int = 0  # storages that djinnd computed, because no plan says them
    local: int = 0  # models that were loaded here, as the program asked


stats = Stats()


@dataclass(frozen=True)
class Ghost:
    model: int  # 0: all weights are its own
    bytes: int
    was_resident: bool
    planned: int
    converted: int
    is_int8: bool = False  # some of its weights are
    paths: tuple[str, ...] = ()  # of the files that it was loaded from
    plan: list[Any] | None = None  # as `_device.open_model` took it; none: djinnd had no plan
    # Each tensor of a file as it is there: name, dtype, sizes.
    stored: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


_ghosts: "weakref.WeakKeyDictionary[torch.nn.Module, Ghost]" = weakref.WeakKeyDictionary()


def ghost_of(model: torch.nn.Module) -> Ghost | None:
    return _ghosts.get(model)


# --- files ----------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text as it is, if a terminal would show it and obey nothing in it; else escaped."""
    return text if text.isprintable() else ascii(text)[1:-1]


def read_header(path: str) -> dict[str, Any]:
    """The header of a safetensors file; no byte of a tensor. Waits for no writer of a FIFO."""
    with _opened(path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _not_regular(path)
        held = os.fstat(file.fileno()).st_size
        begin = file.read(8)
        size = int.from_bytes(begin, "little")
        if len(begin) < 8 or size > HEADER_BYTES_MAX:
            raise _no_safetensors(path, file)
        try:
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            ends = [operator.index(entry["data_offsets"][1]) for entry in header.values()]
            data_bytes = max(ends, default=0)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            _expect_whole(path, held, 8 + size)
            raise _no_safetensors(path, file) from error
    _expect_whole(path, held, 8 + size + data_bytes)
    return header


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket's
            raise
        raise _not_regular(path) from error


def _not_regular(path: str) -> RequestError:
    return RequestError(
        *(101, "malformed"), f"{printable(path)} is not a regular file. Fetch or copy it anew."
    )


def _no_safetensors(path: str, file: BinaryIO) -> RequestError:
    sentence = f"{printable(path)} is no safetensors file ({size_text(file.seek(0, os.SEEK_END))})"
    file.seek(0)
    next_step = ". Fetch or copy it anew."
    if file.read(len(LFS_POINTER)) == LFS_POINTER:
        next_step = ": it is git-lfs' pointer to one. Run git lfs pull in its directory."
    return RequestError(101, "malformed", sentence + next_step)


def _expect_whole(path: str, held: int, needed: int) -> None:
    """In the words of djinnd's loader, which transformers would not come to: where config.json has
    no dtype it reads the first file itself, and its error names no file."""
    if held < needed:
        raise RequestError(
            *(101, "malformed"),
            f"{printable(path)}: This is not a valid safetensors file: it is cut short, with "
            f"{held} of {needed} bytes. Fetch or copy it anew.",
        )


class Source:
    """What safetensors' own slices offer; indexing it makes a tensor of the device."""

    def __init__(self, file: int, name: str, dtype: str, sizes: list[int]) -> None:
        if dtype not in DTYPES:
            raise RequestError(
                *(102, "unsupported"),
                f"The tensor {name} has the dtype {dtype}, unknown to djinnd.",
            )
        self._key = (file, name)
        self._dtype = dtype
        self._sizes = sizes

    def get_shape(self) -> list[int]:
        return self._sizes

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = _device.source(*self._key, DTYPES[self._dtype], self._sizes)
        return whole if index is Ellipsis else whole[index]


# --- one load -------------------------------------------------------------------------------------


def unload(model: int) -> None:
    """Drops a model at once, which would stay resident until its memory is wanted."""
    with suppress(Error), djinn.connect(name="ghosts", observer=True) as session:
        session.raw.unload_model(model)  # refused while another session uses it


class Load:
    def __init__(self) -> None:
        self._expected: dict[str, dict[str, Any]] = {}  # headers of all checkpoints' files
        self._built = 0  # parameters
        self._built_max: int | None = None  # None: no checkpoint says anything
        self._paths: list[str] = []
        self._headers: list[dict[str, tuple[str, tuple[int, ...]]]] = []
        self._undecided: list[tuple[torch.nn.Module, str, str]] = []
        self._holding = False
        self.models: list[torch.nn.Module] = []  # as they are finished: the outermost last
        self.needed = 0

    def begin(self, needed: int) -> None:
        """Has operators recorded and kept back from now on."""
        self.needed += needed
        interlock.reach(self.needed)
        if not self._holding:
            _device.hold()
            self._holding = True

    def end(self) -> None:
        if self._holding:
            _device.release_hold()
            self._holding = False

    def expect(self, paths: Sequence[str]) -> None:
        """The files of a model that transformers builds next."""
        self._expected |= {path: read_header(path) for path in paths}
        self._built_max = PARAMETERS_A_TENSOR_MAX * self._tensors() + PARAMETERS_BESIDE_MAX

    def _tensors(self) -> int:
        return sum(map(len, self._expected.values()))

    def count_parameter(self) -> None:
        """Counts one of a model that is being built: config.json alone says how many it has, be it
        10⁹."""
        self._built += 1
        if self._built_max is not None and self._built > self._built_max:
            raise RequestError(
                *(101, "malformed"),
                "config.json asks for far more weights than the checkpoint holds: transformers was "
                f"stopped after {self._built} parameters, for {self._tensors()} tensors. Compare "
                "its numbers (of layers, experts, heads) with the checkpoint's.",
            )

    def elements_max(self) -> int:
        """The most elements that parameters and buffers of a model may have for the files that were
        expected."""
        held = sum(
            math.prod(entry["shape"])
            for header in self._expected.values()
            for entry in header.values()
        )
        return ELEMENTS_AN_ELEMENT_MAX * held + ELEMENTS_BESIDE_MAX

    def open_files(self, paths: Sequence[str]) -> dict[str, Source]:
        """All tensors of safetensors files."""
        found: dict[str, Source] = {}
        for path in paths:
            number = len(self._paths)
            header = self._expected.get(path) or read_header(path)
            self._paths.append(path)
            self._headers.append({})
            for name, entry in header.items():
                source = Source(number, name, entry["dtype"], entry["shape"])
                dtype = str(DTYPES[entry["dtype"]]).removeprefix("torch.")
                self._headers[number][name] = (dtype, tuple(entry["shape"]))
                found[name] = source
        return found

    def tie_later(self, model: torch.nn.Module, target: str, source: str) -> None:
        """Both names are in the checkpoint: they are one tensor if their values are equal."""
        self._undecided.append((model, target, source))

    def finish(self) -> None:
        """Opens the model that was recorded, and makes ghosts of all models of this load."""
        label = _device.label_of(self._paths)
        gradients.begin(self.models)
        ghost = self._open(label, list(self._tensors_here()))
        self._convert(label)
        for model in self.models:
            _ghosts[model] = ghost
        stats.ghosts += 1
        stats.resident += ghost.was_resident
        stats.planned += ghost.planned
        stats.converted += ghost.converted
        self._tie()

    def _tensors_here(self) -> Iterator[torch.Tensor]:
        """All parameters and buffers on the device."""
        for model in self.models:
            for tensor in itertools.chain(model.parameters(), model.buffers()):
                if tensor.device == DEVICE:
                    yield tensor

    def _open(self, label: str, tensors: list[torch.Tensor]) -> Ghost:
        storages = list(
            {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values()
        )
        plan = plans.Plan(is_int8=config.weights == "int8")
        planned, converted = self._plan(plan, storages)
        if not planned:
            return Ghost(0, 0, False, 0, converted)
        if converted == 0:
            plan.add_beside(self._headers)
        names = plan.own_names(self._headers)
        wanted = plan if names is None else plans.Plan(is_int8=plan.is_int8)
        opened = self._open_model(label, wanted)
        for tensor, name in planned:
            _device.bind(tensor, opened["lease"], name if names is None else names[name])
        return Ghost(
            *(opened["id"], opened["bytes"], opened["was_resident"], len(planned), converted),
            is_int8=opened["is_int8"],
            paths=tuple(self._paths),
            plan=plan.for_device() if names is None else None,
            stored=tuple((name, *entry) for one in self._headers for name, entry in one.items()),
        )

    def _plan(
        self, plan: plans.Plan, storages: list[torch.Tensor]
    ) -> tuple[list[tuple[torch.Tensor, str]], int]:
        """Plans all storages that a plan can fill. Gives those with the names of their weights, and
        how many others operators make."""
        tracer = plans.Tracer(self._headers)
        planned, converted = [], 0
        for tensor, (what, _) in zip(storages, _device.traces(storages), strict=True):
            if what[0] not in ("source", "op", "written"):
                continue
            try:
                planned.append((tensor, plan.add(tracer.storage(what))))
            except plans.Inexpressible:
                converted += 1
        return planned, converted

    def _open_model(self, label: str, plan: plans.Plan) -> dict[str, Any]:
        try:
            return _device.open_model(
                label,
                self._paths,
                plan.for_device(),
                plan.is_int8,
                milliseconds(config.keep_alive, "keep_alive"),
            )
        except interlock.REFUSALS as error:
            raise interlock.Unavailable(error, self.needed) from error

    def _convert(self, label: str) -> None:
        """Lets djinnd compute what no plan says."""
        keys = sorted({(file, tensor) for file, tensor in _device.pending_sources()})
        if not keys:
            self.end()
            return
        plan = plans.Plan()
        names = {
            (file, tensor): plan.add(plans.tensor_of(file, tensor, self._headers[file][tensor]))
            for file, tensor in keys
        }
        opened = self._open_model(f"{label}, to be converted", plan)
        for (file, tensor), name in names.items():
            _device.bind_source(file, tensor, opened["lease"], name)
        self.end()
        _device.flush()
        del opened["lease"]  # the last, so that this model is closed
        self._wait()
        unload(opened["id"])

    def _wait(self) -> None:
        """Waits until all that was handed over is done: runs of a session keep their order."""
        _device.flush()
        (torch.ones(1, device=DEVICE) + 1).cpu()

    def _tie(self) -> None:
        model: Any
        for model, target, source in self._undecided:
            kept, other = model.get_parameter(source), model.get_parameter(target)
            if kept.shape == other.shape and torch.equal(kept, other):
                module, _, name = target.rpartition(".")
                setattr(model.get_submodule(module), name, kept)
                model.all_tied_weights_keys[target] = source
