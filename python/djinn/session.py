"""Sessions: a connection to djinnd, and what it holds there.

The connection is the lease: when it closes, or this process ends, everything that the session held
in djinnd is released.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _client, arrays
from .plan import LoadPlan
from .program import Program, Ref, SequenceGroup, Where

PathLike = str | os.PathLike[str]


_FOREVER = 2**64 - 1


def keep_alive_ms(seconds: float | None) -> int | None:
    """As djinnd counts it. None: as djinnd is configured."""
    if seconds is None:
        return None
    if not seconds >= 0:
        raise ValueError(f"A model stays for 0 seconds or more, or math.inf, not {seconds!r}.")
    return _FOREVER if seconds == math.inf else min(round(seconds * 1000), _FOREVER)


class Model:
    """Named weights in djinnd, shared by every session that opens the same files."""

    def __init__(self, session: "Session", opened: Mapping[str, Any]) -> None:
        self._session = session
        self.handle: int = opened["id"]
        self.id = _client.id_text(self.handle)
        self.bytes: int = opened["bytes"]
        self.was_resident: bool = opened["was_resident"]
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (dtype, sizes) for name, dtype, sizes in opened["tensors"]
        }

    def close(self) -> None:
        """Gives up this session's lease; the last one lets the weights go."""
        self._session.raw.close_model(self.handle)

    def __repr__(self) -> str:
        return f"djinn.Model({self.id}, {len(self.tensors)} tensors, {self.bytes} bytes)"


class Session:
    """One connection. Threads may share it; their calls take turns."""

    def __init__(self, raw: _client.Session) -> None:
        self.raw = raw
        self.id = raw.id
        self.staging_bytes = raw.staging_bytes
        self.threads = raw.threads

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def close(self) -> None:
        self.raw.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(
        self,
        path: PathLike | Sequence[PathLike],
        plan: LoadPlan | None = None,
        pin: bool = False,
        label: str | None = None,
        keep_alive: float | None = None,
    ) -> Model:
        """Opens a Hugging Face directory, a safetensors file or a list of them. The weights are
        read by djinnd, unless they are resident; no byte of them comes here. `pin` keeps them
        without a lease until they are unloaded, `keep_alive` for so many seconds after the last
        lease (math.inf: for ever), in place of what djinnd is configured to."""
        stay = (pin, keep_alive_ms(keep_alive))
        if isinstance(path, str | os.PathLike):
            if Path(path).is_dir():
                return Model(self, self.raw.open_directory(os.fspath(path), plan, *stay))
            path = [path]
        files = [os.fspath(one) for one in path]
        label = label or Path(files[0]).stem
        return Model(self, self.raw.open_files(label, files, plan, *stay))

    def unload(self, model: Model) -> None:
        """Drops a pinned model that no session leases any more."""
        self.raw.unload_model(model.handle)

    def define(self, source: str, model: Model | None = None) -> Program:
        """Admits a graph in SRG text (kernel/srg/TEXT.md) as a program that runs by id. Its
        weights are those of `model`."""
        return Program(self, self.raw.define(source, model.handle if model else 0))

    def run_once(
        self,
        source: str,
        model: Model | None = None,
        *,
        symbols: Mapping[str, int] | None = None,
        outputs: Where | Mapping[str, Where] = "array",
        **inputs: Any,
    ) -> dict[str, Any]:
        """Runs a graph that is checked, executed and forgotten."""
        program = Program(self, _client.parse(source, model.handle if model else 0))
        return program(symbols=symbols, outputs=outputs, **inputs)

    def put(self, array: arrays.Array, dtype: str | None = None) -> Ref:
        """Keeps a copy of an array in djinnd. `dtype` says what its bits are, if not what numpy
        says of them: "bfloat16" for uint16."""
        name = dtype or arrays.dtype_name(array)
        data = arrays.checked(array, name, "the array")
        return Ref(self, self.raw.put(data), name, data.shape)

    def sequence(
        self,
        rows: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        capacity: int,
        reorderable: bool = False,
    ) -> SequenceGroup:
        """An empty sequence group of up to `capacity` tokens a row. One whose rows can be reordered
        takes twice the memory."""
        geometry = (rows, layers, kv_heads, head_dim, dtype, capacity, reorderable)
        return SequenceGroup(self, self.raw.make_sequence(*geometry))

    def status(self) -> dict[str, Any]:
        """djinnd's state: memory, counts, workers."""
        return self.raw.status()

    def sessions(self) -> list[dict[str, Any]]:
        return self.raw.sessions()

    def models(self) -> list[dict[str, Any]]:
        return self.raw.models()


def connect(
    host: str | None = None,
    name: str | None = None,
    staging_bytes: int = _client.STAGING_BYTES_DEFAULT,
    observer: bool = False,
) -> Session:
    """Attaches to djinnd at `host` ("unix:PATH"), else where DJINN_HOST says, else the user's
    own daemon, else the system's. `name` is what `djinnctl sessions` shows. `staging_bytes` bounds
    the arrays that cross in one run. An observer can only ask: it has no data path."""
    shown = name or Path(sys.argv[0] or "python").name
    return Session(_client.connect(host or "", shown, staging_bytes, observer))
