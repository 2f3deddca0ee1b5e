# SPDX-License-Identifier: Apache-2.0
"""What a model is made of, so that a change of it is noticed before a call that may be replayed.

    Watch   modules and their classes, the values among their attributes, what those hold in turn
            (lists, dictionaries, dataclasses, configurations), tensors and their versions

A look at an unchanged model is a few passes in C over flat lists, by identity. Where one finds a
difference, values are compared: a number that was computed anew is no change.

Not noticed: what code reads from elsewhere, as a global of its module or an array of NumPy's that
was written in place.
"""

import operator
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import torch

WATCH = "_djinn_watch"  # the model's attribute
UNASKED = "_djinn_unasked"  # a model's, by gradients.py
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
HELD = ("_parameters", "_buffers", "_modules")
# Attributes that decide no forward.
NOT_READ = frozenset(("generation_config", WATCH, UNASKED))
SIMPLE = frozenset(
    (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
)
# Objects of these packages are looked at from outside only.
OPAQUE = (sys.stdlib_module_names | {"torch", "numpy"}) - {"types", "collections", "__main__"}
# Objects beside modules: some hundreds for each layer of the deepest models.
OBJECTS_MAX = 50_000

_END = object()
_version = operator.attrgetter("_version")
_wants_gradient = operator.attrgetter("requires_grad")


class Watch:
    """Is attached to its model, because it holds what may hold the model; with the model it goes. A
    copy or pickle of the model has None in its place."""

    def __init__(self, model: torch.nn.Module) -> None:
        model.__dict__[WATCH] = self
        self._owner = weakref.ref(model, self._clear)
        self.values: list[Any] = []  # what is comparable by value, and the rest's identities
        self.kinds: list[type] = []  # of the modules: first the model
        self._others: list[torch.nn.Module] = []
        self.hooks: list[dict[int, Any]] = []  # two for each module: before a forward, after it
        self.tensors: list[torch.Tensor] = []
        self._sources: list[Callable[[], Iterable[Any]]] = []  # they give the things, in order
        self._things: list[Any] = []
        self._empty: list[Any] = []  # containers, which are to stay so
        self._numbers: dict[int, int] = {}  # of what was visited, by id
        self._classes: set[type] = set()
        self._visit(model)
        self._watch(partial(iter, (_END,)), (_END,))
        self._versioned = [one for one in self.tensors if not one.is_inference()]
        self._places = self._where()

    def holds(self, model: torch.nn.Module) -> bool:
        """Whether all is the same. If not, it may still be equal: see equals()."""
        given = chain.from_iterable(source() for source in self._sources)
        return (
            self._owner() is model
            and not any(self._empty)
            and all(map(operator.is_, map(type, chain((model,), self._others)), self.kinds))
            and all(map(operator.is_, given, self._things))
            and self._where() == self._places
        )

    def equals(self, other: "Watch") -> bool:
        return self.values == other.values and self._places == other._places

    def wants_gradient(self) -> bool:
        return any(map(_wants_gradient, self.tensors))

    def _clear(self, _: Any) -> None:
        """Forgets what leads back to the model's attributes."""
        for one in (self._others, self.hooks, self.tensors, self._sources, self._things):
            one.clear()
        self._empty.clear()
        self._versioned.clear()

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()

    def _where(self) -> tuple[list[int], list[int]]:
        data_ptr = torch.Tensor.data_ptr
        return list(map(data_ptr, self.tensors)), list(map(_version, self._versioned))

    def _watch(self, source: Callable[[], Iterable[Any]], things: Iterable[Any]) -> None:
        self._sources.append(source)
        self._things.extend(things)

    # --- what there is

    def _visit(self, one: Any) -> None:
        kind = type(one)
        if kind in SIMPLE:
            self.values += (kind, one)
        elif id(one) in self._numbers:
            self.values.append(self._numbers[id(one)])
        else:
            self._numbers[id(one)] = len(self._numbers)
            self._visit_new(one, kind)

    def _visit_new(self, one: Any, kind: type) -> None:
        self.values.append(kind)
        if isinstance(one, torch.nn.Module):
            self._module(one)
        elif isinstance(one, torch.Tensor) and _has_address(one):
            self.values.append(id(one))
            self.tensors.append(one)
        elif isinstance(one, type) or len(self._numbers) - len(self.kinds) > OBJECTS_MAX:
            self.values.append(id(one))
        elif isinstance(one, dict):
            self.values += one
            self._container(one, partial(dict.values, one))
        elif isinstance(one, (list, deque)):
            self._container(one, one.__iter__)
        elif isinstance(one, (set, frozenset)):
            self.values.append(frozenset(one))
            self._watch(one.__iter__, one)
        elif isinstance(one, tuple):
            self._items(one)
        elif kind.__module__.partition(".")[0] in OPAQUE:
            self.values.append(id(one))
        else:
            self._object(one)

    def _module(self, module: torch.nn.Module) -> None:
        self.values.append(id(module))
        if self.kinds:
            self._others.append(module)
        self.kinds.append(type(module))
        self._class(type(module))
        inside = module.__dict__
        self.hooks += (inside["_forward_pre_hooks"], inside["_forward_hooks"])
        self._watch(inside.values, inside.values())
        for name, one in list(inside.items()):
            if name in HELD or not (name in OF_EVERY_MODULE or name in NOT_READ):
                self.values.append(name)
                self._visit(one)

    def _container(self, one: Any, source: Callable[[], Iterable[Any]]) -> None:
        if one:
            self._watch(source, source())
        else:
            self._empty.append(one)
        self._items(list(source()))

    def _items(self, items: Any) -> None:
        self.values.append(len(items))
        for item in items:
            self._visit(item)

    def _object(self, one: Any) -> None:
        """Its attributes, in a dictionary or slots; an object without any is what it is."""
        self._class(type(one))
        inside = getattr(one, "__dict__", None)
        names = _slots_of(type(one))
        if isinstance(inside, dict):
            self._visit(inside)
        if names:
            source = partial(_slots, one, names)
            self._watch(source, source())
            self._items(source())
        if not names and not isinstance(inside, dict):
            self.values.append(id(one))

    def _class(self, kind: type) -> None:
        for one in kind.__mro__:
            if one in self._classes or one is object:
                continue
            self._classes.add(one)
            self._watch(one.__dict__.values, one.__dict__.values())
            self.values += map(id, one.__dict__.values())


def _slots(one: Any, names: list[str]) -> list[Any]:
    return [getattr(one, name, _END) for name in names]


def _slots_of(kind: type) -> list[str]:
    found: list[str] = []
    for one in kind.__mro__:
        names = one.__dict__.get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _has_address(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # a sparse one, or one that is to be made
        return False
    return True


__all__ = ["UNASKED", "WATCH", "Watch"]
