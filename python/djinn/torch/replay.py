# SPDX-License-Identifier: Apache-2.0
"""A forward call without the Python of its layers.

A ghost's call with arguments of the same kinds and sizes as one before is captured as a program,
and from then on replayed: its id and inputs cross, and its results are the same bits. The first
such call is recorded, which is exact, and captured where numerics are fast-only. Values that
the model's code looks at are guards: a program holds for those of which it would see the same (a
mask with zeros elsewhere, if it asked only whether there are any).
Hooks, changed weights or attributes, or anything that cannot be captured: the call is recorded.
"""

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _device, gradients, notice, state
from .config import config
from .state import DEVICE, NotInDaemon

PLAIN = (bool, int, float, str, type(None), torch.dtype)
# Guarded values a call may have programs for: code that looks at all that it is given would make
# one for each call.
GUARDED_MAX = 8
# Limits for one model: programs, each of which djinnd keeps for this process, and kinds of calls.
PROGRAMS_MAX = 64
KEYS_MAX = 1024
# Calls of new sizes until their number is told, if they are the most.
NEW_SIZES_TOLD = 32

SLOWLY = "go operator by operator, which may be slower than without djinn"
NEW_SIZES = (
    f"Most calls of a ghost have arguments of sizes that no call before them had, and {SLOWLY}. "
    "Pad batches to few lengths, as by a tokenizer's pad_to_multiple_of."
)
LOOKS = (
    f"Calls of a ghost {SLOWLY}: the model's code looks at values of its arguments, and sees "
    "others with each call."
)

_inside = threading.local()
# Between any two lines that it covers, a signal's handler may come here in the same thread.
_turn = threading.RLock()


@dataclass
class _Call:
    """A call's arguments, apart: what a program depends on, and the tensors that it reads."""

    key: Any
    tensors: list[torch.Tensor]
    leaves: list[Any]
    spec: Any

    def arguments(self, tensors: list[torch.Tensor]) -> tuple[Any, Any]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(one, torch.Tensor) else one for one in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass
class _Program:
    template: Any
    guards: set[int]  # numbers of the tensors at whose values the code looked
    leaves: list[Any]  # of the result: None where a tensor goes
    spec: Any

    def holds_for(self, tensors: list[torch.Tensor]) -> bool:
        if not self.guards:
            return True
        return self.template.holds_for(
            [one.cpu() if number in self.guards else None for number, one in enumerate(tensors)]
        )

    def run(self, tensors: list[torch.Tensor]) -> Any:
        results = iter(_device.replay(self.template, tensors))
        leaves = [next(results) if one is _TENSOR else one for one in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


_TENSOR = object()


@dataclass
class _Seen:
    """What is known of calls with one key."""

    calls: int = 0
    programs: list[_Program] = field(default_factory=list)
    refused: str = ""


def call(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """In place of `model(*args, **kwargs)`, which `original` carries out."""
    if getattr(_inside, "call", False):
        return original(model, *args, **kwargs)
    _inside.call = True
    try:
        quietly = gradients.is_unasked(model, args, kwargs)
        with torch.no_grad() if quietly else nullcontext():
            return _outermost(original, model, args, kwargs)
    finally:
        _inside.call = False


TRAINS = (
    "it is in training mode: a training step is recorded, forward and backward, and djinnd runs it "
    "whole, which is the fastest way for training; for inference call model.eval()"
)


def _outermost(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    known = state.known_of(model)
    try:
        program, tensors = _find(original, model, known, args, kwargs)
    except NotInDaemon as reason:
        why = str(reason)
    else:
        state.took(known, 1)
        return program.run(tensors)
    # Not in the handler, so that an error of the original's does not seem to come of ours.
    state.refuse_exact(model, "this call of a ghost", why)
    state.took(known, 0, why)
    return original(model, *args, **kwargs)


def _find(original: Any, model: Any, known: Any, args: Any, kwargs: Any) -> Any:
    if model.training:
        raise NotInDaemon(TRAINS)
    one = _take_apart(args, kwargs)
    watch = state.refresh(model, known)
    if torch.is_grad_enabled() and watch.wants_gradient():
        raise NotInDaemon("a gradient may be asked for")
    seen = _seen(known.replays, one.key)
    seen.calls += 1
    known.calls += 1
    if seen.refused:
        raise NotInDaemon(seen.refused)
    for program in seen.programs:
        if program.holds_for(one.tensors):
            return program, one.tensors
    if seen.calls == 1 and not state.is_fast_only(model):
        _count_new_sizes(known)
        raise NotInDaemon("no call before had arguments of these kinds and sizes")
    if len(seen.programs) >= GUARDED_MAX:
        notice.once(LOOKS)
        raise NotInDaemon("its code looks at values that change with each call")
    try:
        program = _capture(original, model, one)
    except NotInDaemon as reason:
        seen.refused = str(reason)
        raise
    seen.programs.append(program)
    _make_room(known.replays, seen)
    return program, one.tensors


def _count_new_sizes(known: Any) -> None:
    known.new_sizes += 1
    if known.new_sizes >= NEW_SIZES_TOLD and 2 * known.new_sizes > known.calls:
        notice.once(NEW_SIZES)


def _seen(replays: dict[Any, _Seen], key: Any) -> _Seen:
    """What is known of the key, which becomes the one used last."""
    with _turn:
        seen = replays.pop(key, None) or _Seen()
        replays[key] = seen
        if len(replays) > KEYS_MAX:
            for oldest in list(replays)[:-KEYS_MAX]:
                replays.pop(oldest, None)
    return seen


def _make_room(replays: dict[Any, _Seen], newest: _Seen) -> None:
    """Forgets what was used longest ago. djinnd keeps a program as long as its template lives."""
    with _turn:
        known = list(replays.items())
        programs = sum(len(one.programs) for _, one in known)
        for key, one in known:
            if programs <= PROGRAMS_MAX:
                return
            if one.programs and one is not newest:
                programs -= len(one.programs)
                replays.pop(key, None)


def _take_apart(args: Any, kwargs: Any) -> _Call:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors, kinds = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad:
                raise NotInDaemon("a gradient of its input may be asked for")
            tensors.append(leaf if leaf.device == DEVICE else leaf.to(DEVICE))
            kinds.append((tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, PLAIN):
            kinds.append((type(leaf), leaf))
        else:
            raise NotInDaemon(f"it is given a {type(leaf).__name__}")
    return _Call((spec, tuple(kinds), state.context()), tensors, leaves, spec)


def _capture(original: Any, model: Any, one: _Call) -> _Program:
    result, recording = None, None
    try:
        with state.capturing(model), torch.no_grad():
            given = [_device.capture_given(i, tensor) for i, tensor in enumerate(one.tensors)]
            args, kwargs = one.arguments(given)
            result = original(model, *args, **kwargs)
            leaves, spec = pytree.tree_flatten(result)
            outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            _check_results(leaves, outputs)
            recording = _device.capture_finish(outputs, False)
    except NotInDaemon:
        raise
    except Exception as error:
        raise NotInDaemon(f"its forward cannot be captured: {state.first_line(error)}") from error
    try:
        template = _device.make_template([recording], [[]], [], config.numerics)
    except RuntimeError as error:
        raise NotInDaemon(f"djinnd takes no program of it: {state.first_line(error)}") from error
    guards = {i for i in range(len(one.tensors)) if recording.guards >> i & 1}
    kept = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return _Program(template, guards, kept, spec)


def _check_results(leaves: list[Any], outputs: list[torch.Tensor]) -> None:
    if not outputs:
        raise NotInDaemon("it returns no tensor")
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, *PLAIN)):
            raise NotInDaemon(f"it returns a {type(leaf).__name__}")
    if any(output.device != DEVICE for output in outputs):
        raise NotInDaemon("it returns a tensor of another device")


__all__ = ["call"]
