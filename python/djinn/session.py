# SPDX-License-Identifier: Apache-2.0
"""Sessions: a connection to djinnd, and what it holds there.

The connection is the lease: when it closes, or this process ends, everything that the session held
in djinnd is released. When djinnd is restarted the session is lost, and a `Session` gets a new one
with its next call that opens something (`Session.reconnect` says more).
"""

import math
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from . import _client, arrays
from .plan import LoadPlan
from .program import Program, Ref, SequenceGroup, Where, refuse_foreign

PathLike = str | os.PathLike[str]


_FOREVER = 2**64 - 1
RECONNECT_WAIT_S = 10.0


def milliseconds(seconds: float | None, what: str) -> int | None:
    """The seconds as djinnd counts them. None stays None."""
    if seconds is None:
        return None
    if not isinstance(seconds, Real):
        raise TypeError(f"{what} is a number of seconds, math.inf or None, not {seconds!r}.")
    if not seconds >= 0:
        raise ValueError(f"{what} must be 0 seconds or more, or math.inf, not {seconds!r}.")
    return _FOREVER if seconds == math.inf else min(round(seconds * 1000), _FOREVER)


def deadline_ms(seconds: float | None, what: str) -> int:
    """The seconds in which something is to have begun, as djinnd counts them: one millisecond at
    least. None and math.inf, which are no deadline, are 0."""
    counted = milliseconds(seconds, what)
    if counted == 0:
        raise ValueError(f"{what} must be a millisecond or more, or None, not {seconds!r}.")
    return 0 if counted is None or counted == _FOREVER else counted


class Model:
    """Named weights in djinnd, shared by every session that opens the same files."""

    def __init__(self, session: "Session", opened: Mapping[str, Any]) -> None:
        self._session = session
        self.handle: int = opened["id"]
        self.lease: int = opened["session"]  # of the sessions of `session`, the one that opened it
        self.id = _client.id_text(self.handle)
        self.bytes: int = opened["bytes"]
        self.was_resident: bool = opened["was_resident"]
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (dtype, sizes) for name, dtype, sizes in opened["tensors"]
        }

    def close(self) -> None:
        """Gives up this session's lease; the last one lets the weights go. Harmless when the
        session is gone."""
        self._session.raw.close_model(self.handle, self.lease)

    def __repr__(self) -> str:
        return f"djinn.Model({self.id}, {len(self.tensors)} tensors, {self.bytes} bytes)"


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in _sessions:
        session.raw.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Session:
    """One connection. Threads may share it; their calls take turns."""

    def __init__(self, raw: _client.Session) -> None:
        self.raw = raw
        _sessions.add(self)

    def __repr__(self) -> str:
        return f"djinn.Session({'closed' if self.closed else self.id})"

    @property
    def id(self) -> str:
        """The id that `djinnctl sessions` shows; a reconnect gives another one."""
        return self.raw.id

    @property
    def staging_bytes(self) -> int:
        return self.raw.staging_bytes

    @property
    def threads(self) -> int:
        """How many compute for this session."""
        return self.raw.threads

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def close(self) -> None:
        """Ends the session, for good, and calls of other threads that wait in it."""
        self.raw.close()

    def reconnect(self, wait: float = RECONNECT_WAIT_S) -> None:
        """Makes a new session where djinnd was restarted or an administrator ended the old one;
        does nothing while that lives. Tries for `wait` seconds (math.inf: until djinnd is there),
        once at least, and raises what the last try did.

        When a session is lost, calls under way raise `LostError`; nothing is repeated behind your
        back. What was opened (models, encoders, programs, refs, sequence groups) went with it, and
        raises `LostError` from then on: open it again. `load`, `define`, `put`, `run_once`,
        `sequence`, `status`, `sessions`, `models`, `Encoder` and `Generator` reconnect by
        themselves first, unless `connect` was told otherwise. In the child of a fork the session
        counts as lost, for it is the parent's.
        """
        wait_ms = milliseconds(wait, "wait")
        if wait_ms is None:
            raise TypeError("wait must be seconds, or math.inf, not None")
        self.raw.reconnect(wait_ms)

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
        stay = (pin, milliseconds(keep_alive, "keep_alive"))
        if isinstance(path, str | os.PathLike):
            if Path(path).is_dir():
                return Model(self, self.raw.open_directory(os.fspath(path), plan, *stay))
            path = [path]
        files = [os.fspath(one) for one in path]
        if not files:
            raise ValueError("a model has at least one file")
        return Model(self, self.raw.open_files(label or "", files, plan, *stay))

    def unload(self, model: Model) -> None:
        """Drops a pinned model that no session leases any more."""
        self.raw.unload_model(model.handle)

    def define(self, source: str, model: Model | None = None) -> Program:
        """Admits a graph in SRG text (djinn-srg(7)) as a program that runs by id. Its
        weights are those of `model`."""
        return Program(self, self.raw.define(source, *self._named(model)))

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
        program = Program(self, _client.parse(source, *self._named(model)))
        return program(symbols=symbols, outputs=outputs, **inputs)

    def put(self, array: arrays.Array, dtype: str | None = None) -> Ref:
        """Keeps a copy of an array in djinnd. `dtype` says what its bits are, if not what numpy
        says of them: "bfloat16" for uint16."""
        name = dtype or arrays.dtype_name(np.asarray(array))
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

    def _named(self, model: Model | None) -> tuple[int, int]:
        """The model's id and lease."""
        if model is None:
            return (0, 0)
        refuse_foreign(self, model, "The model")
        return (model.handle, model.lease)

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
    reconnect_wait: float | None = RECONNECT_WAIT_S,
    device: str | None = None,
    service_class: str = "normal",
    begin_within: float | None = None,
) -> Session:
    """Attaches to djinnd at `host` ("unix:PATH", "ssh://USER@HOST", "djinn://NAME"), else where
    DJINN_HOST says, else the user's own daemon, else the system's. `name` is what `djinnctl
    sessions` shows.
    `staging_bytes` bounds the arrays that cross in one run. An observer can only ask: it has no
    data path. `device` ("cpu:0") is where models and programs are to be; djinnd's first if it is
    left out.

    `service_class` says what the session gets of a busy lane beside the user's other sessions:
    "interactive" twice as much as "normal", and that twice as much as "batch"; "idle" only what
    none of them can use.

    `begin_within`: how many seconds a run or generation may wait for its turn. One that djinnd
    expects to wait longer raises a `LimitError` at once, whose code is "queue_full", and one whose
    turn comes later, then: nothing of it was done. Of several prompts of an exported model the
    first alone is judged, and the others wait, for the call has begun. None: it waits.

    After djinnd went, calls that reconnect (see `Session.reconnect`) try for `reconnect_wait`
    seconds from when the first of them saw it (math.inf: until djinnd is there), then once each.
    None: they raise `LostError`, and only `Session.reconnect` makes another session."""
    shown = name or Path(sys.argv[0] or "python").name
    wait_ms = milliseconds(reconnect_wait, "reconnect_wait")
    return Session(
        _client.connect(
            host or "",
            shown,
            staging_bytes,
            observer,
            wait_ms,
            device or "",
            service_class,
            deadline_ms(begin_within, "begin_within"),
        )
    )
