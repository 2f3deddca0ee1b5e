# SPDX-License-Identifier: Apache-2.0
"""Programs of ghosts that are fast: near PyTorch's results, said as what they are; exact stays the
default, with the CPU's bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import llama
import pytest
import torch
import transformers
from command_line import ctl
from llama import GREEDY, on_device, prompt
from private_daemon import Daemon

pytestmark = pytest.mark.usefixtures("enabled")


@pytest.fixture
def numerics() -> Iterator[Any]:
    before = djinn.config.numerics
    yield djinn.config
    djinn.config.numerics = before


def fast_nodes(daemon: Daemon) -> int:
    return sum(one["fast_nodes"] for one in ctl(daemon, "programs", "-j").items())


def logits_of(ghost: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of a call that is replayed: the first one of its kind runs operator by operator."""
    for _ in range(2):
        logits = ghost(**on_device(inputs), use_cache=False).logits.cpu()
    assert djinn.explain(ghost)["tier"] == 1
    return logits


def test_a_generation_is_fast_where_that_is_asked_for(
    local: Any, ghost: Any, numerics: Any, device_daemon: Daemon
) -> None:
    inputs = prompt(2, 9)
    expected = local.generate(**inputs, **GREEDY)
    before = fast_nodes(device_daemon)
    assert torch.equal(ghost.generate(**on_device(inputs), **GREEDY).cpu(), expected)
    assert fast_nodes(device_daemon) == before, "exact is the default"
    numerics.numerics = "fast"
    found = ghost.generate(**on_device(inputs), **GREEDY)
    assert djinn.explain(ghost)["tier"] == 2
    assert fast_nodes(device_daemon) > before
    assert torch.equal(found.cpu(), expected), "sums that differ in their last bits"


def test_what_is_fast_is_near_and_what_is_exact_has_the_cpus_bits_again(
    local: Any, ghost: Any, numerics: Any
) -> None:
    inputs = prompt(2, 8)
    expected = local(**inputs, use_cache=False).logits
    for wanted in ("fast", "exact", "fast", "exact"):
        numerics.numerics = wanted
        found = logits_of(ghost, inputs)
        if wanted == "fast":
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        else:
            assert torch.equal(found, expected), wanted


def test_a_row_is_what_it_is_alone(numerics: Any, tmp_path: Path) -> None:
    """The row contract, through a whole model: 32 rows are what our kernels take. It is wide enough
    for PyTorch's own products to depend on how many rows there are."""
    wide = {"hidden_size": 512, "intermediate_size": 1376}
    ghost = transformers.AutoModelForCausalLM.from_pretrained(llama.save(tmp_path, 3, **wide))
    numerics.numerics = "fast"
    inputs = prompt(32, 1)
    together = logits_of(ghost, inputs)
    for row in range(32):
        alone = logits_of(ghost, {name: one[row : row + 1] for name, one in inputs.items()})
        assert torch.equal(alone.view(torch.int32), together[row : row + 1].view(torch.int32)), row


def test_there_are_no_other_numerics(numerics: Any) -> None:
    with pytest.raises(ValueError, match='is "exact" or "fast", not '):
        numerics.numerics = "quick"
    assert "numerics='exact'" in repr(djinn.config)
