"""What is known of each ghost, and when it is out of date: what generation and replay share."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _device

# Attributes of modules that may decide what a forward does.
SIMPLE = frozenset((bool, int, float, str))
# What may hold those: PEFT keeps the name of the active adapter in a list.
CONTAINERS = frozenset((list, tuple, dict))
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


class NotInDaemon(Exception):
    """Why a call takes a lower tier."""


@dataclass
class Known:
    state: Any = None
    captured: dict[Any, Any] = field(default_factory=dict)  # by generation.py
    replays: dict[Any, Any] = field(default_factory=dict)  # by replay.py
    tier: int = 0
    why: str = "it was not called yet"


_known: "weakref.WeakKeyDictionary[Any, Known]" = weakref.WeakKeyDictionary()


def known_of(model: Any) -> Known:
    return _known.setdefault(model, Known())


def explain(model: Any) -> dict[str, Any]:
    """Which tier the model's last call or generation took, and why not a higher one.

    0: its operators were recorded one by one. 1: its forward was replayed as a program. 2: the loop
    over tokens ran in djinnd."""
    inside = getattr(model, "get_base_model", None)  # PEFT's models call the one inside of them
    known = known_of(model if inside is None else inside())
    return {"tier": known.tier, "why": known.why}


def refresh(model: Any, known: Known) -> None:
    """Forgets programs that were captured from other weights, attributes or configuration. Raises
    NotInDaemon if a hook is registered, which wants to see every call."""
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        raise NotInDaemon("a global forward hook is registered")
    state: list[Any] = [dict(vars(model.config))]
    for module in model.modules():
        inside = module.__dict__
        if inside["_forward_pre_hooks"] or not _are_transformers(inside["_forward_hooks"]):
            raise NotInDaemon(f"a {type(module).__name__} has a forward hook")
        state.append(_attributes(inside))
        for tensors in (inside["_parameters"], inside["_buffers"]):
            for tensor in tensors.values():
                if tensor is not None:
                    state.append((id(tensor), tensor.data_ptr(), tensor._version))
    if known.state != state:
        known.state = state
        known.captured.clear()
        known.replays.clear()


def _attributes(inside: dict[str, Any]) -> list[Any]:
    """The plain values among a module's attributes, and those in its lists and dictionaries."""
    found: list[Any] = []
    for name, one in inside.items():
        if one.__class__ in SIMPLE:
            found.append(one)
        elif one.__class__ in CONTAINERS and name not in OF_EVERY_MODULE:
            items = one.items() if one.__class__ is dict else enumerate(one)
            found.append([(key, item) for key, item in items if item.__class__ in SIMPLE])
    return found


def _are_transformers(hooks: dict[int, Any]) -> bool:
    """Hooks by which transformers gathers hidden states: their work is part of the forward."""
    return all(
        getattr(hook, "__module__", "") == "transformers.utils.output_capturing"
        for hook in hooks.values()
    )


@contextmanager
def capturing() -> Iterator[None]:
    """A capture in this thread, forgotten if it was not finished."""
    _device.capture_begin()
    try:
        yield
    finally:
        _device.capture_abort()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
