# SPDX-License-Identifier: Apache-2.0
"""Ways to generate as transformers' documentation has them: tokens are the CPU's, and what is not
as fast as it could be is told."""

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import djinn
import llama
import pytest
import tokenizers
import torch
import transformers
from djinn.torch.replay import NEW_SIZES, NEW_SIZES_TOLD
from llama import EVERY, GREEDY, RETURNED, Unknown, on_device, prompt
from transformers.generation import stopping_criteria, streamers

pytestmark = pytest.mark.usefixtures("enabled")

Told = Callable[[], AbstractContextManager[list[str]]]
Places = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def characters() -> Any:
    """A token for each printable character."""
    vocabulary = {chr(32 + token): token for token in range(llama.VOCABULARY)}
    model = tokenizers.models.BPE(vocabulary, [], unk_token=chr(32))
    one = tokenizers.Tokenizer(model)
    one.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=one, pad_token=chr(32))


def text(tokens: torch.Tensor) -> str:
    return "".join(chr(32 + token) for token in tokens.tolist())


def here(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return inputs


PLACES = pytest.mark.parametrize("place", [on_device, here])


# --- ids on the CPU -------------------------------------------------------------------------------


def test_ids_on_the_cpu_go_to_djinnds_loop_and_the_result_is_on_the_cpu(
    local: Any, ghost: Any
) -> None:
    inputs = prompt(3, 7, padded=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        djinn.disable()
        djinn.enable()  # says what is not to be warned of
        found = ghost.generate(**inputs, **GREEDY, **RETURNED)
    assert djinn.explain(ghost)["tier"] == 2
    assert found.sequences.device.type == "cpu"
    assert found.past_key_values.layers[0].keys.device == djinn.device(0)
    assert torch.equal(found.sequences, local.generate(**inputs, **GREEDY))


def test_tokens_are_drawn_where_the_ids_are(local: Any, ghost: Any) -> None:
    inputs = prompt(2, 6, padded=True)
    options = {"max_new_tokens": 20, "do_sample": True, "pad_token_id": 0, "top_k": 40}
    drawn = []
    for model in (local, ghost):
        torch.manual_seed(5)
        drawn.append(model.generate(**inputs, **options))
    assert torch.equal(*drawn), "the CPU's random numbers"
    assert djinn.explain(ghost)["tier"] == 1 and "on the CPU" in djinn.explain(ghost)["why"]


# --- what ends a generation -----------------------------------------------------------------------


def stop_string(local: Any, inputs: dict[str, torch.Tensor], row: int = 0) -> str:
    """Of two characters, that the row comes to in the middle."""
    plain = local.generate(**inputs, **EVERY)[row, inputs["input_ids"].shape[1] :]
    return text(plain)[10:12]


@PLACES
@pytest.mark.parametrize("eos", [None, 1])
def test_stop_strings_end_djinnds_loop(
    local: Any, ghost: Any, characters: Any, place: Places, eos: int | None
) -> None:
    for rows in (1, 3):
        inputs = prompt(rows, 7, padded=True)
        options = dict(EVERY, eos_token_id=eos, tokenizer=characters)
        options["stop_strings"] = [stop_string(local, inputs, row) for row in range(rows)]
        expected = local.generate(**inputs, **options)
        assert expected.shape[1] < 7 + 24
        found = ghost.generate(**place(inputs), **options)
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        assert torch.equal(found.cpu(), expected)


def test_a_stop_string_leaves_random_numbers_and_cache_as_a_loop_here(
    local: Any, ghost: Any, characters: Any
) -> None:
    inputs = on_device(prompt(1, 7))
    torch.manual_seed(3)
    options = dict(EVERY, do_sample=True, tokenizer=characters, **RETURNED)
    stop = text(ghost.generate(**inputs, **options).sequences[0, 7:])[10:12]
    ended = []
    for more in ({}, {"logits_processor": [Unknown()]}):
        torch.manual_seed(3)
        one = ghost.generate(**inputs, **options, stop_strings=stop, **more)
        length = one.past_key_values.get_seq_length()
        assert length == one.sequences.shape[1] - 1 < 7 + 23
        torch.manual_seed(4)
        again = ghost.generate(one.sequences, past_key_values=one.past_key_values, **options)
        torch.manual_seed(3)
        ghost.generate(**inputs, **options, stop_strings=stop, **more)
        after = ghost.generate(**inputs, **options)
        ended.append([one.sequences.cpu(), again.sequences.cpu(), after.sequences.cpu()])
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


def test_a_row_that_ends_alone_leaves_its_cache_as_a_loop_here(
    local: Any, ghost: Any, characters: Any
) -> None:
    inputs = prompt(2, 7)
    stop = [stop_string(local, inputs, row) for row in range(2)]
    options = dict(EVERY, eos_token_id=1, tokenizer=characters, stop_strings=stop, **RETURNED)
    expected = local.generate(**inputs, **options)
    found = ghost.generate(**on_device(inputs), **options)
    assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    for ours, theirs in zip(
        found.past_key_values.layers, expected.past_key_values.layers, strict=True
    ):
        assert torch.equal(ours.keys.cpu(), theirs.keys)


class Ticking:
    """In place of the module `time`: each look takes a second."""

    now = 0.0

    def time(self) -> float:
        self.now += 1
        return self.now


@PLACES
@pytest.mark.parametrize("rows", [1, 3])
def test_max_time_ends_djinnds_loop_with_the_tokens_so_far(
    local: Any, ghost: Any, place: Places, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = prompt(rows, 7, padded=True)
    options = dict(EVERY, **RETURNED)
    found = []
    for model, where in ((local, here), (ghost, place)):
        monkeypatch.setattr(stopping_criteria, "time", Ticking())
        found.append(model.generate(**where(inputs), **options, max_time=9.5))
    expected, ours = found
    assert djinn.explain(ghost).items() >= {"tier": 2, "why": ""}.items()
    assert expected.sequences.shape[1] == 7 + 10
    assert torch.equal(ours.sequences.cpu(), expected.sequences)
    assert ours.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    again = [
        model.generate(one.sequences, past_key_values=one.past_key_values, **EVERY).cpu()
        for model, one in ((local, expected), (ghost, ours))
    ]
    assert torch.equal(*again), "the cache holds those tokens and no more"
    assert djinn.explain(ghost)["tier"] == 2


def test_max_time_is_over_while_djinnd_has_many_tokens_to_go(ghost: Any) -> None:
    inputs, most = on_device(prompt(1, 7)), 2000
    ghost.generate(**inputs, **EVERY)  # captured
    begin = time.monotonic()
    found = ghost.generate(**inputs, **dict(EVERY, max_new_tokens=most), max_time=0.05)
    assert time.monotonic() - begin < 10
    assert djinn.explain(ghost).items() >= {"tier": 2, "why": ""}.items()
    assert 0 < found.shape[1] - 7 < most
    plain = ghost.generate(**inputs, **dict(EVERY, max_new_tokens=found.shape[1] - 7))
    assert torch.equal(found, plain)


def test_a_streamer_sees_the_tokens_up_to_a_stop_string(
    local: Any, ghost: Any, characters: Any
) -> None:
    class Streamer(streamers.BaseStreamer):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.seen.append(-1)

    inputs, seen = prompt(1, 7), []
    options = dict(EVERY, tokenizer=characters, stop_strings=stop_string(local, inputs))
    for model, place in ((local, here), (ghost, on_device)):
        streamer = Streamer()
        model.generate(**place(inputs), **options, streamer=streamer)
        seen.append(streamer.seen)
    assert seen[0] == seen[1] and djinn.explain(ghost)["tier"] == 2


def test_what_a_streamer_raises_at_the_last_token_is_raised(ghost: Any) -> None:
    class Failing(streamers.BaseStreamer):
        count = 0

        def put(self, value: torch.Tensor) -> None:
            self.count += value.numel()
            if self.count == 5 + 24:
                raise LookupError("no such word")

        def end(self) -> None:
            pass

    with pytest.raises(LookupError, match="no such word"):
        ghost.generate(**on_device(prompt(1, 5)), **GREEDY, streamer=Failing())
    found = djinn.explain(ghost)
    assert found["tier"] is None and "no such word" in found["why"]


# --- beam search ----------------------------------------------------------------------------------


@PLACES
@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True, "eos_token_id": 1},
        {"length_penalty": 0.3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"min_new_tokens": 9, "eos_token_id": list(range(2, 60))},
        {"logits_processor": [Unknown()], "output_scores": True},
    ],
    ids=str,
)
def test_beams_are_those_of_the_cpu_over_steps_in_djinnd(
    local: Any, ghost: Any, place: Places, rule: dict[str, Any]
) -> None:
    for rows, padded in ((1, False), (3, True)):
        inputs = prompt(rows, 7, padded)
        options = dict(EVERY, num_beams=3, **RETURNED) | rule
        expected = local.generate(**inputs, **options)
        found = ghost.generate(**place(inputs), **options)
        explained = djinn.explain(ghost)
        assert explained["tier"] == 1 and explained["why"].startswith("beam search"), explained
        assert type(found) is type(expected) and found.keys() == expected.keys()
        assert found.sequences.device == place(inputs)["input_ids"].device
        for name in set(expected) - {"past_key_values"}:
            for a, b in zip(leaves(found[name]), leaves(expected[name]), strict=True):
                assert torch.equal(a.cpu(), b), name
        expect_same_cache(found.past_key_values, expected.past_key_values, padded)


def leaves(value: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)


def expect_same_cache(ours: Any, theirs: Any, padded: bool) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        first = 2 if padded else 0  # what padding keeps is looked at by nobody
        assert torch.equal(one.keys[:, :, first:].cpu(), other.keys[:, :, first:])
        assert torch.equal(one.values[:, :, first:].cpu(), other.values[:, :, first:])


@PLACES
def test_beams_that_are_drawn_are_drawn_where_the_ids_are(
    local: Any, ghost: Any, place: Places
) -> None:
    inputs, drawn = prompt(2, 7), []
    options = dict(EVERY, num_beams=3, do_sample=True)
    for model in (local, ghost, ghost):
        torch.manual_seed(9)
        there = inputs if model is local else place(inputs)
        drawn.append(model.generate(**there, **options).cpu())
    assert torch.equal(drawn[1], drawn[2])
    assert djinn.explain(ghost)["tier"] == 1
    if place is here:
        assert torch.equal(drawn[0], drawn[1])


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["loaded", "moved"])
def test_a_model_of_any_dtype_generates(
    checkpoint: Path, ghost: Any, dtype: torch.dtype, how: str
) -> None:
    load = transformers.AutoModelForCausalLM.from_pretrained
    if how == "loaded":
        model, local = load(checkpoint, dtype=dtype), load(checkpoint, dtype=dtype, djinn=False)
        local = copy.deepcopy(local)  # safetensors may map weights to any address
    else:
        model, local = ghost.to(dtype), llama.local(checkpoint).to(dtype)
    inputs = prompt(2, 7, padded=True)
    for options, tier in (({}, 2), ({"num_beams": 2}, 1)):
        expected = local.generate(**inputs, **EVERY, **options)
        found = model.generate(**on_device(inputs), **EVERY, **options)
        assert djinn.explain(model)["tier"] == tier, djinn.explain(model)
        assert torch.equal(found.cpu(), expected)


# --- what is told ---------------------------------------------------------------------------------


def test_what_is_explained_after_an_error_is_the_error(ghost: Any) -> None:
    ghost.generate(**on_device(prompt(1, 7)), **GREEDY)
    with pytest.raises(ValueError, match="num_return_sequences"):
        ghost.generate(**on_device(prompt(1, 7)), **GREEDY, num_return_sequences=3)
    found = djinn.explain(ghost)
    assert found["tier"] is None
    assert found["why"].startswith("its last generation ended with an error: ")
    ghost.generate(**on_device(prompt(1, 7)), **GREEDY)
    assert djinn.explain(ghost).items() >= {"tier": 2, "why": ""}.items()


def test_a_static_cache_is_told_of_once(local: Any, ghost: Any, told: Told) -> None:
    inputs, options = prompt(1, 7), dict(EVERY, cache_implementation="static")
    expected = local.generate(**inputs, **options)
    with told() as sentences:
        for _ in range(3):
            assert torch.equal(ghost.generate(**on_device(inputs), **options).cpu(), expected)
    assert len(sentences) == 1 and "static" in sentences[0], sentences
    found = djinn.explain(ghost)
    assert found["tier"] == 0 and "leave it out" in found["why"]


@pytest.mark.parametrize("beams", [1, 2])
def test_float_ids_are_no_tokens(local: Any, ghost: Any, beams: int) -> None:
    ids, options = torch.tensor([[3.0, 4.5]]), dict(EVERY, num_beams=beams)
    for model, place in ((local, "cpu"), (ghost, "cpu"), (ghost, djinn.device(0))):
        with pytest.raises(RuntimeError, match=r"Long, Int|int64 or int32"):
            model.generate(ids.to(place), **options)


def test_what_goes_operator_by_operator_is_told_by_its_reason(
    local: Any, ghost: Any, told: Told
) -> None:
    inputs = prompt(1, 7)
    with told() as sentences:
        ghost.generate(**on_device(inputs), **EVERY)
        ghost.generate(**on_device(inputs), **EVERY, num_beams=2)
        ghost.generate(**on_device(inputs), **EVERY, use_cache=False)
        ghost.generate(**on_device(prompt(20, 7)), **EVERY, num_beams=2)
        ghost.generate(**on_device(inputs), **EVERY, prompt_lookup_num_tokens=2)
    reasons = ("without a cache", "40 sequences at once", "assisted decoding")
    assert len(sentences) == len(reasons), sentences
    for sentence, reason in zip(sentences, reasons, strict=True):
        assert reason in sentence and "docs/GHOSTS.md" in sentence
    assert "assisted decoding" in djinn.explain(ghost)["why"]


def test_calls_of_ever_new_sizes_are_told_of_once(ghost: Any, told: Told) -> None:
    with told() as sentences:
        for length in range(2, 2 + NEW_SIZES_TOLD - 1):
            ghost(**on_device(prompt(1, length)), use_cache=False)
    assert sentences == []
    with told() as sentences:
        for length in range(40, 44):
            ghost(**on_device(prompt(1, length)), use_cache=False)
    assert sentences == [NEW_SIZES]
    assert "kinds and sizes" in djinn.explain(ghost)["why"]


def test_a_gpu_that_is_not_there_is_told_with_where_a_ghost_is(
    checkpoint: Path, ghost: Any
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    load = transformers.AutoModelForCausalLM.from_pretrained
    for ask in (ghost.cuda, lambda: ghost.to("cuda"), lambda: load(checkpoint, device_map="cuda")):
        with pytest.raises((RuntimeError, AssertionError)) as caught:
            ask()
        assert "model.device" in "".join(caught.value.__notes__)
    ghost.generate(**on_device(prompt(1, 7)), **EVERY)
    assert djinn.explain(ghost)["tier"] == 2
