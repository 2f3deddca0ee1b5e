# SPDX-License-Identifier: Apache-2.0
"""What is known of each ghost, and when it is out of date: what generation and replay share."""

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from djinn.errors import RequestError

from . import _device
from .config import config
from .watch import WATCH, Watch

DEVICE = torch.device("remote_accelerator", 0)
NOT_SEEN = "no call of model(...) or model.generate(...) was seen since djinn.enable()"
UNDER_WAY = "its generation has not ended"
NOT_OURS = "its last generation called no model of its own: custom code did all"


class NotInDaemon(Exception):
    """Why a call takes a lower tier."""


@dataclass
class Known:
    moves: int = -1  # of the device, when the programs were captured
    captured: dict[Any, Any] = field(default_factory=dict)  # by capture.py
    replays: dict[Any, Any] = field(default_factory=dict)  # by replay.py
    calls: int = 0  # of model(...), by replay.py
    new_sizes: int = 0  # of those: with arguments of sizes that none before had
    tier: int | None = None  # of the last call that was seen
    why: str = NOT_SEEN
    turn: int = 0  # when that was, among all models' calls

    def forget(self) -> None:
        self.captured.clear()
        self.replays.clear()


_thread = threading.local()
_turns = itertools.count(1)
_known: "weakref.WeakKeyDictionary[Any, Known]" = weakref.WeakKeyDictionary()


def known_of(model: Any) -> Known:
    return _known.setdefault(model, Known())


def programs_of(model: Any) -> list[Any]:
    """The templates of its generations and of its forwards."""
    known = _known.get(model)
    if known is None:
        return []
    captured = [one.template for one in known.captured.values() if not isinstance(one, str)]
    replayed = [one.template for seen in known.replays.values() for one in seen.programs]
    return captured + replayed


def took(known: Known, tier: int, why: str = "") -> None:
    """A call ended so, or is about to. One that is captured is no call."""
    if getattr(_thread, "captures", False):
        return
    known.tier, known.why, known.turn = tier, why, next(_turns)
    _device.state_call(tier)


def is_gone(model: Any) -> bool:
    """Whether it went with the session that held its weights, or is of the process that this one
    was forked from: then each way ends in an error."""
    if _device.is_forked():
        return True
    _device.session()  # looks whether it lives
    first = next(iter(model.parameters()), None)
    return first is not None and first.device == DEVICE and _device.is_lost(first.detach())


def is_fast_only(model: Any) -> bool:
    """Whether nothing that the model gives may be computed exactly."""
    return (config.numerics or _numerics_of(model)) == "fast-only"


def _numerics_of(model: Any) -> str:
    """As its programs have them where `config` says none: those of the model in djinnd whose
    weights it has, or else djinnd's."""
    tensors = (one.detach() for one in model.parameters() if one.device == DEVICE)
    return next(filter(None, map(_device.numerics_of_weight, tensors)), None) or _device.numerics()


def refuse_exact(model: Any, what: str, why: str) -> None:
    """Called before what goes operator by operator: that is exact, and an error where nothing may
    be. A capture computes nothing, and a model that is gone says so with its first operator."""
    if getattr(_thread, "captures", False) or not is_fast_only(model) or is_gone(model):
        return
    raise RequestError(
        102,
        "unsupported",
        f"Numerics are fast-only, and {what} would go operator by operator, which is exact: "
        f'{why.rstrip(".")}. With djinn.config.numerics = "fast" what has no fast form is exact.',
    )


def last_called(model: Any, generates: type) -> Known:
    """What is known of the model, or of the part of it that was called after it, if that is a model
    that generates: some leave their generation to a decoder inside of them."""
    parts = [one for one in model.modules() if one is not model and isinstance(one, generates)]
    return max((known_of(one) for one in (model, *parts)), key=lambda known: known.turn)


@contextmanager
def generation(model: Any) -> Iterator[None]:
    """A call of generate(): what is told of the model afterwards is of this one."""
    known = known_of(model)
    known.tier, known.why, known.turn = None, UNDER_WAY, next(_turns)
    try:
        yield
        if known.why == UNDER_WAY:
            known.why = NOT_OURS
    except BaseException as error:
        known.tier, known.turn = None, next(_turns)
        known.why = f"its last generation ended with an error: {first_line(error)}"
        raise


def forget_calls() -> None:
    """From here on calls are seen anew: since disable() some may have passed unseen."""
    for known in _known.values():
        known.tier, known.why = None, NOT_SEEN


def refresh(model: Any, known: Known) -> Watch:
    """Forgets programs that were captured from other weights, attributes or code. Raises
    NotInDaemon if a hook is registered, which wants to see every call."""
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        raise NotInDaemon("a global forward hook is registered")
    try:
        watch = _watch_of(model, known)
    except RuntimeError as error:
        raise NotInDaemon(f"it changes while it is looked at: {first_line(error)}") from error
    moves = _device.moves()
    if known.moves != moves:  # a write through .data is in no version
        known.forget()
        known.moves = moves
    if any(watch.hooks):
        _check_hooks(watch)
    return watch


# A watch is attached to its model before it is whole, and what one thread attaches is a change to
# another's.
_looking = threading.RLock()


def _watch_of(model: Any, known: Known) -> Watch:
    with _looking:
        before: Watch | None = model.__dict__.get(WATCH)
        if before is not None and before.holds(model):
            return before
        return _look_anew(model, known, before)


def _look_anew(model: Any, known: Known, before: Watch | None) -> Watch:
    watch = Watch(model)
    if before is None or not watch.equals(before):
        known.forget()
    return watch


def _check_hooks(watch: Watch) -> None:
    for number, kind in enumerate(watch.kinds):
        before, after = watch.hooks[2 * number : 2 * number + 2]
        if before or not _are_transformers(after):
            raise NotInDaemon(f"a {kind.__name__} has a forward hook")


def _are_transformers(hooks: dict[int, Any]) -> bool:
    """Hooks by which transformers gathers hidden states: their work is part of the forward."""
    return all(
        getattr(hook, "__module__", "") == "transformers.utils.output_capturing"
        for hook in hooks.values()
    )


def context() -> Any:
    """What a forward depends on beside its model and arguments: programs hold for equal ones only.
    Raises NotInDaemon if a mode is active that wants to see every operator."""
    if torch._C._len_torch_dispatch_stack() > 0:
        raise NotInDaemon("a mode is active that looks at each operator")
    attention = torch.backends.cuda  # where the switches of all devices are
    modes: tuple[str, ...] = ()
    if torch._C._len_torch_function_stack() > 0:
        modes = tuple(_default_device(mode) for mode in _get_current_function_mode_stack())
    return (
        modes,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled(DEVICE.type) and torch.get_autocast_dtype(DEVICE.type),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        attention.flash_sdp_enabled(),
        attention.math_sdp_enabled(),
        attention.fp16_bf16_reduction_math_sdp_allowed(),
        torch.backends.mha.get_fastpath_enabled(),
        config.numerics,
    )


def _default_device(mode: Any) -> str:
    if type(mode) is not DeviceContext:
        raise NotInDaemon(f"a {type(mode).__name__} is active, which looks at each function")
    return str(mode.device)


def attributes_of(model: Any) -> Callable[[], None]:
    """The result takes back what a forward leaves in its modules, as states of a recurrence."""
    before = [
        (held, {name: one for name, one in held.items() if name != WATCH})
        for one in model.modules()
        for held in (one.__dict__, one._buffers, one._parameters)
    ]

    def restore() -> None:
        for held, was in before:
            for name in [name for name in held if name not in was and name != WATCH]:
                del held[name]
            held.update({name: one for name, one in was.items() if held.get(name) is not one})

    return restore


@contextmanager
def _as_they_were(model: Any) -> Iterator[None]:
    """Under capture what a forward leaves has no value, and the next call would find it."""
    restore = attributes_of(model)
    try:
        yield
    finally:
        restore()


@contextmanager
def capturing(model: Any) -> Iterator[None]:
    """A capture of the model in this thread, forgotten if it was not finished."""
    with _as_they_were(model):
        yield from _capturing()


def _capturing() -> Iterator[None]:
    cached = torch.is_autocast_cache_enabled()
    collects = gc.isenabled()
    gc.disable()  # what a collection calls would be captured
    _device.capture_begin()
    torch.set_autocast_cache_enabled(False)  # it would keep casts that were captured
    _thread.captures = True
    try:
        yield
    finally:
        _thread.captures = False
        _device.capture_abort()
        torch.set_autocast_cache_enabled(cached)
        if collects:
            gc.enable()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
