# SPDX-License-Identifier: Apache-2.0
"""When a ghost computes gradients.

Its parameters ask for them, as those of a local model do. But a forward pass that may be followed
by a backward one keeps all its activations in djinnd, and most programs only want an answer. So a
ghost's calls in eval mode are as under `torch.no_grad()` until its program says that it trains:

    model.train(), model.requires_grad_(True), an optimizer of some of its parameters, or parameters
    that were frozen or added: who chooses which to train trains the others

From then on, and for a call whose inputs ask for a gradient, it is as any model is. Nothing here
changes a parameter's `requires_grad`: what a program freezes stays frozen.
"""

import copy
import functools
import operator
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .state import DEVICE
from .watch import UNASKED, WATCH

WAY_OUT = (
    "A ghost's calls in eval mode are as under torch.no_grad() until its program says that it "
    "trains: before the call, use model.train(), or model.requires_grad_(True) for gradients in "
    "eval mode. Nor is there a gradient where all its parameters were frozen."
)

_wants_gradient = operator.attrgetter("requires_grad")


class Said:
    """Shared by the models of one load, which may lie inside of each other."""

    trains = False


class Unasked:
    """A loaded model's attribute: how many of its parameters asked for a gradient, and what was
    said since. A copy of the model has a copy; a pickle has None in its place."""

    def __init__(self, said: Said, wanting: int) -> None:
        self.said = said
        self.wanting = wanting
        self.additions = 0  # to optimizers, when it was last compared with them

    def __deepcopy__(self, memo: dict[int, Any]) -> "Unasked":
        return Unasked(copy.deepcopy(self.said, memo), self.wanting)

    def __reduce__(self) -> Any:
        return type(None), ()


_optimizers: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
_additions = 0


def begin(models: Iterable[torch.nn.Module]) -> None:
    """Begins for all models of one load."""
    said = Said()
    for model in models:
        for module in model.modules():
            if hasattr(module, "from_pretrained"):  # a call of it is seen
                module.__dict__[UNASKED] = Unasked(said, _wanting(module.parameters()))


def _wanting(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(_wants_gradient, tensors))


def is_unasked(model: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether this call, which is inside of no other, is to be without gradients."""
    found: Unasked | None = model.__dict__.get(UNASKED)
    if found is None or found.said.trains or model.training or not torch.is_grad_enabled():
        return False
    watch = model.__dict__.get(WATCH)
    tensors = list(model.parameters()) if watch is None else watch.tensors
    if _wanting(tensors) != found.wanting:
        return False
    if found.additions != _additions and _are_optimized(tensors):
        found.said.trains = True
        return False
    found.additions = _additions
    return not any(one.requires_grad for one in _tensors_in((args, kwargs)))


def _are_optimized(tensors: list[torch.Tensor]) -> bool:
    numbers = set(map(id, tensors))
    return any(
        id(one) in numbers
        for optimizer in list(_optimizers)
        for group in optimizer.param_groups
        for one in group["params"]
    )


def _tensors_in(given: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(given):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        for layer in getattr(leaf, "layers", None) or ():  # of a cache
            yield from (one for one in vars(layer).values() if isinstance(one, torch.Tensor))


# --- who asks -------------------------------------------------------------------------------------


def _asks(model: torch.nn.Module) -> None:
    found: Unasked | None = model.__dict__.get(UNASKED)
    if found is not None:
        found.said.trains = True


def wrap_train(original: Any) -> Any:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if mode:
            _asks(self)
        return original(self, mode)

    return train


def wrap_requires_grad(original: Any) -> Any:
    @functools.wraps(original)
    def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
        if requires_grad:
            _asks(self)
        return original(self, requires_grad)

    return requires_grad_


def wrap_add_param_group(original: Any) -> Any:
    @functools.wraps(original)
    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        global _additions
        original(self, param_group)
        if any(one.device == DEVICE for one in self.param_groups[-1]["params"]):
            _optimizers.add(self)
            _additions += 1

    return add_param_group


def wrap_differentiate(original: Any) -> Any:
    """Makes `torch.autograd.backward` and `grad` say what to do where there is no gradient."""

    @functools.wraps(original)
    def differentiate(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            tensors = pytree.tree_leaves((args[:1], kwargs.get("tensors"), kwargs.get("outputs")))
            if "does not require grad" not in str(error) or not any(map(_lacks_gradient, tensors)):
                raise
            raise RuntimeError(f"{error}. {WAY_OUT}") from None

    return differentiate


def _lacks_gradient(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.device == DEVICE and not one.requires_grad


__all__ = [
    "begin",
    "is_unasked",
    "wrap_add_param_group",
    "wrap_differentiate",
    "wrap_requires_grad",
    "wrap_train",
]
