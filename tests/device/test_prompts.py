# SPDX-License-Identifier: Apache-2.0
"""Prompts of fast numerics run in parts of 128 tokens, so that what is asked for in one generation
or in several has the same bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import forked
import llama
import pytest
import torch
import transformers
from llama import EVERY, RETURNED, on_device, prompt
from private_daemon import running

pytestmark = pytest.mark.usefixtures("enabled")

# Wide enough for PyTorch's own products to depend on how many rows there are.
WIDE = {"hidden_size": 256, "intermediate_size": 688, "max_position_embeddings": 512}
TOKENS = 300


@pytest.fixture
def fast() -> Iterator[None]:
    before = djinn.config.numerics
    djinn.config.numerics = "fast"
    yield
    djinn.config.numerics = before


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama.save(tmp_path_factory.mktemp("wide"), 5, **WIDE)


def bits_of(cache: Any, tokens: int) -> list[torch.Tensor]:
    """Of its keys and values of so many tokens, by layer."""
    held = [one for layer in cache.layers for one in (layer.keys, layer.values)]
    return [one[:, :, :tokens].cpu().contiguous().view(torch.int32) for one in held]


def generated(ghost: Any, ids: torch.Tensor, stops: list[int]) -> Any:
    """What the ids are continued with, of which so many are given in each of several calls."""
    cache = transformers.DynamicCache(config=ghost.config)
    for stop in stops:
        given = {"input_ids": ids[:, :stop], "attention_mask": torch.ones_like(ids[:, :stop])}
        last = {"max_new_tokens": 24 if stop == stops[-1] else 1}
        found = ghost.generate(
            **on_device(given), **(EVERY | RETURNED | last), past_key_values=cache
        )
        assert djinn.explain(ghost)["tier"] == 2
        assert djinn.explain(ghost)["why"] == ""
        cache = found.past_key_values
    return found


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_given_at_once_and_bit_by_bit_has_the_same_bits(
    wide: Path, fast: None, rows: int
) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(wide)
    ids = prompt(rows, TOKENS)["input_ids"]
    whole = generated(ghost, ids, [TOKENS])
    expected = bits_of(whole.past_key_values, TOKENS + 23)
    for stops in ([128, 256, TOKENS], [256, TOKENS], [128, TOKENS]):
        found = generated(ghost, ids, stops)
        assert torch.equal(found.sequences, whole.sequences), stops
        bits = bits_of(found.past_key_values, TOKENS + 23)
        assert all(map(torch.equal, bits, expected)), stops


def test_a_conversation_that_is_cropped_to_such_a_length_goes_on_alike(
    wide: Path, fast: None
) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(wide)
    ids = prompt(1, TOKENS)["input_ids"]
    whole = generated(ghost, ids, [TOKENS])
    first = generated(ghost, torch.cat((ids[:, :256], ids[:, :20]), 1), [276])
    cache = first.past_key_values
    cache.crop(256)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    again = ghost.generate(**on_device(given), **EVERY, **RETURNED, past_key_values=cache)
    assert torch.equal(again.sequences, whole.sequences)
    found, expected = (bits_of(one.past_key_values, TOKENS) for one in (again, whole))
    assert all(map(torch.equal, found, expected))


def test_it_says_what_exact_says(wide: Path, fast: None) -> None:
    local = llama.local(wide)
    ghost = transformers.AutoModelForCausalLM.from_pretrained(wide)
    inputs = prompt(1, TOKENS)
    expected = local.generate(**inputs, **EVERY, **RETURNED)
    found = ghost.generate(**on_device(inputs), **EVERY, **RETURNED)
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    pairs = zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True)
    for ours, theirs in pairs:
        worst = (ours.keys.cpu() - theirs.keys).abs().max()
        assert worst <= 1e-4 * theirs.keys.abs().max()
    assert djinn.explain(ghost)["programs"] == 3


def test_exact_prompts_run_in_one_pass(wide: Path) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(wide)
    ghost.generate(**on_device(prompt(1, TOKENS)), **EVERY)
    told = djinn.explain(ghost)
    assert (told["tier"], told["why"], told["programs"]) == (2, "", 2)


def test_one_of_padded_rows_runs_in_one_pass_and_says_why(wide: Path, fast: None) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(wide)
    ghost.generate(**on_device(prompt(2, TOKENS, padded=True)), **EVERY)
    told = djinn.explain(ghost)
    assert told["tier"] == 2
    assert told["why"] == "its prompt ran in one pass, because its rows are padded"
    ghost.generate(**on_device(prompt(2, 100, padded=True)), **EVERY)
    assert djinn.explain(ghost)["why"] == "", "it is no longer than a part"


@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_so_with_any_number_of_threads(wide: Path, tmp_path: Path, threads: int) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    with running(threads=threads) as daemon:
        told = forked.run(str(script), str(wide), DJINN_HOST=daemon.host)
    assert told.stdout.split() == ["alike"], told.stderr


CHILD = """
import sys
import djinn.torch, torch, transformers
djinn.enable()
djinn.config.numerics = "fast"
ghost = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.randint(2, 96, (1, 300), generator=torch.Generator().manual_seed(7)).to(ghost.device)
options = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}


def generated(stops):
    cache = transformers.DynamicCache(config=ghost.config)
    for stop in stops:
        mask = torch.ones_like(ids[:, :stop])
        found = ghost.generate(ids[:, :stop], attention_mask=mask, past_key_values=cache,
                               max_new_tokens=9 if stop == 300 else 1, **options)
        cache = found.past_key_values
    held = [one.cpu() for layer in cache.layers for one in (layer.keys, layer.values)]
    return [found.sequences.cpu(), *held]


whole, parts = generated([300]), generated([128, 256, 300])
print("alike" if all(map(torch.equal, whole, parts)) else "different")
"""
