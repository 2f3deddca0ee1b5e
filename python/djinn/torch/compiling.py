# SPDX-License-Identifier: Apache-2.0
"""torch.compile and the device: what runs in djinnd is not compiled here.

    torch.compile(ghost), ghost.compile()    its calls are the ghost's own
    a compiled function that calls a ghost   the call is left as it is, between compiled parts
    a graph over the device's tensors        its operators are recorded, as without torch.compile

Each is told once in a process. Inductor would end in an assertion: it has no code for the device.
"""

import functools
from typing import Any

import torch

from . import notice
from .state import DEVICE

GHOST = (
    "torch.compile leaves a ghost as it is: its calls run in djinnd, as programs where they "
    "repeat, and there is nothing of them to compile here."
)
GRAPH = (
    "torch.compile leaves operators on djinnd's tensors as they are: inductor has no code for its "
    "device, so they run in djinnd one by one, as without torch.compile."
)


def wrap_compile(original: Any) -> Any:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        model = args[0] if args else kwargs.get("model")
        if not is_of_device(model):
            return original(*args, **kwargs)
        notice.once(GHOST)
        return torch.compiler.disable(model)

    return compile


def wrap_module_compile(original: Any) -> Any:
    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_of_device(self):
            return original(self, *args, **kwargs)
        notice.once(GHOST)
        return None

    return compile


def wrap_inductor(original: Any) -> Any:
    """Wraps the class that stands for inductor among torch.compile's back ends."""

    @functools.wraps(original)
    def __call__(self: Any, graph: Any, inputs: Any) -> Any:
        if not _computes_there(graph):
            return original(self, graph, inputs)
        notice.once(GRAPH)
        return graph.forward

    return __call__


def is_of_device(model: Any) -> bool:
    """A module, or a method of one."""
    module = getattr(model, "__self__", model)
    if not isinstance(module, torch.nn.Module):
        return False
    return any(one.device == DEVICE for one in module.parameters())


def _computes_there(graph: Any) -> bool:
    """Whether a value of the graph is on the device."""
    values = (node.meta.get("example_value") for node in graph.graph.nodes)
    leaves = torch.utils._pytree.tree_leaves(list(values))
    return any(isinstance(one, torch.Tensor) and one.device == DEVICE for one in leaves)


def left_alone(function: Any) -> Any:
    """The function, which no compiler looks into."""
    return torch.compiler.disable(function, reason=GHOST)


__all__ = ["is_of_device", "left_alone", "wrap_compile", "wrap_inductor", "wrap_module_compile"]
