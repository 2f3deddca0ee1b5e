# SPDX-License-Identifier: Apache-2.0
"""torch.compile of what is on the device: it runs as without it, and that is told once."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import djinn
import pytest
import torch
from llama import GREEDY, on_device, prompt

pytestmark = pytest.mark.usefixtures("enabled")

Told = Callable[[], AbstractContextManager[list[str]]]


@pytest.mark.parametrize("how", ["torch.compile", "fullgraph", "decorator", "model.compile"])
def test_a_compiled_ghost_is_the_ghost(local: Any, ghost: Any, how: str, told: Told) -> None:
    ways = {
        "torch.compile": torch.compile,
        "fullgraph": lambda model: torch.compile(model, fullgraph=True),
        "decorator": torch.compile(dynamic=True),
        "model.compile": lambda model: model.compile() or model,
    }
    with told() as sentences:
        compiled = ways[how](ghost)
        ways[how](ghost)
    assert len(sentences) == 1 and "leaves a ghost as it is" in sentences[0], sentences
    inputs = prompt(2, 8)
    for _ in range(3):
        found = compiled(**on_device(inputs), use_cache=False).logits
        assert torch.equal(found.cpu(), local(**inputs, use_cache=False).logits)
    assert djinn.explain(compiled)["tier"] == djinn.explain(ghost)["tier"] == 1
    found = compiled.generate(**on_device(inputs), **GREEDY)
    assert torch.equal(found.cpu(), local.generate(**inputs, **GREEDY))
    assert djinn.explain(compiled)["tier"] == 2


def test_a_compiled_function_leaves_its_ghost_and_what_follows_as_they_are(
    local: Any, ghost: Any, told: Told
) -> None:
    def last(model: Any, ids: torch.Tensor) -> torch.Tensor:
        hidden = model(ids + 1, use_cache=False).logits
        return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])[:, -1] * 2

    ids = prompt(2, 8)["input_ids"]
    with told() as sentences:
        compiled = torch.compile(last)
        for _ in range(3):
            found = compiled(ghost, ids.to(djinn.device(0)))
            assert torch.equal(found.cpu(), last(local, ids))
    assert djinn.explain(ghost)["tier"] == 1
    assert len(sentences) == 1 and "operators on djinnd's tensors" in sentences[0], sentences


def test_a_compiled_function_of_the_devices_tensors_has_gradients(device: torch.device) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.gelu(x @ w) + 1).square().mean()

    gradients = []
    for function, place in ((loss, "cpu"), (torch.compile(loss), device)):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(place)
        w = torch.linspace(-2, 2, 8).reshape(4, 2).to(place).requires_grad_()
        function(x, w).backward()
        gradients.append(w.grad.cpu())
    assert torch.equal(*gradients)


def test_what_is_not_on_the_device_is_compiled(local: Any) -> None:
    compiled = torch.compile(local, backend="eager")
    assert compiled is not local
    with warnings.catch_warnings():
        warnings.simplefilter("error", djinn.PerformanceWarning)
        counted = torch._dynamo.utils.counters["frames"]["ok"]
        inputs = prompt(2, 8)
        found = compiled(**inputs, use_cache=False).logits
    assert torch.equal(found, local(**inputs, use_cache=False).logits)
    assert torch._dynamo.utils.counters["frames"]["ok"] > counted
