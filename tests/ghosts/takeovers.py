# SPDX-License-Identifier: Apache-2.0
"""Generations that outgrow a window, that djinnd takes over after their prompt, or whose tokens
write recurrent states: each case is done with a local model and with a ghost, or with a ghost in
djinnd's loop and in transformers' own. All run in one process, as those of loads.py.

    takeovers.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import compare
import djinn
import loads
import pytest
import torch
import zoo
from djinn.torch import generation
from djinn.torch.state import NotInDaemon
from loads import Case
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from users import both, kill_worker, killed, tier, word_tokenizer

CASES: dict[str, Case] = {}
# A window; a table of positions; attention with linear biases; an encoder; images for the prompt,
# in the place of its tokens and before them; recurrent states.
NAMES = ("gemma2", "gptj", "bloom", "t5", "llava", "git", "mamba")
SAMPLED = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.9, "top_k": 40}
DEAD = (1, 7, 20)  # tokens after which a worker is killed
# Attention whose sinks a softmax has beside the keys, or that are put to its result; and by another
# number than the width's.
SINKS = ("GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM")
SCALED = ("granite", "granitemoe")
OTHER_MASKS = ("CTRLLMHeadModel",)  # which hide by -1e4, and no infinity
LONG = 50  # new tokens of each row, of which 99 % agree


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def generate(name: str, model: PreTrainedModel, variant: zoo.Variant, **options: Any) -> Any:
    inputs = compare.fitting(zoo.entry(name).inputs, model, variant)
    torch.manual_seed(zoo.SEED)
    given = zoo.GREEDY | {"pad_token_id": zoo.PAD} | options
    return model.generate(**inputs, **given)


class Killer(BaseStreamer):
    """Kills the worker when it has seen so many tokens."""

    def __init__(self, *after: int) -> None:
        self.after, self.seen = after, 0

    def put(self, value: torch.Tensor) -> None:
        if self.seen in self.after:
            kill_worker()
        self.seen += 1  # the prompt comes first, as one

    def end(self) -> None:
        pass


@contextmanager
def in_python(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own loop, and recorded operators: a hook wants to see every call."""
    block = next(one for one in model.modules() if type(one).__name__.endswith(("Layer", "Block")))
    hook = block.register_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        hook.remove()


def tensors(cache: Any) -> list[torch.Tensor]:
    return [one.cpu() for _, one in compare.tensors_of(cache)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, (number, a.shape, b.shape)
        assert torch.equal(a, b), number


@case
def greedy_tokens_are_those_of_the_cpu(scratch: Path) -> None:
    for name in NAMES:
        one, other = both(name, scratch)
        for variant in zoo.VARIANTS:
            found, expected = (generate(name, model, variant) for model in (other, one))
            assert torch.equal(found.cpu(), expected), (name, variant)
            assert tier(other) == 2, (name, djinn.explain(other))


class Teacher(LogitsProcessor):
    """Makes a generation say what was said, and keeps what it would have said instead."""

    def __init__(self, said: torch.Tensor) -> None:
        self.said, self.likeliest = said, list[torch.Tensor]()

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.likeliest.append(scores.argmax(-1))
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter(1, self.said[:, ids.shape[1], None], 0.0)


@case
def sinks_scales_and_other_masks_are_those_of_the_cpu(scratch: Path) -> None:
    """Exactly, and in fast numerics all but for near ties; then attention is our kernel's, but that
    of prompts in one node is PyTorch's."""
    long: dict[str, Any] = {"max_new_tokens": LONG, "min_new_tokens": LONG, "eos_token_id": None}
    for name in (*SINKS, *SCALED, *OTHER_MASKS):
        one, other = both(name, scratch)
        for variant in zoo.VARIANTS:
            found, expected = (generate(name, model, variant) for model in (other, one))
            assert torch.equal(found.cpu(), expected), (name, variant)
            assert tier(other) == 2, (name, djinn.explain(other))
        with loads.instead(djinn.config, "numerics", "fast"):
            said = generate(name, other, "batch", **long).cpu()
        told = djinn.explain(other)
        assert told["tier"] == 2 and "fast" in told["numerics"], (name, told)
        left = {why for why in told["left_exact"] if why.startswith("attend")}
        assert left <= {"attend: it is a prompt's"}, (name, told)
        teacher = Teacher(said)
        assert torch.equal(generate(name, one, "batch", logits_processor=[teacher], **long), said)
        same = torch.stack(teacher.likeliest, 1) == said[:, -LONG:]
        assert same.float().mean() >= 0.99, (name, float(same.float().mean()))


@case
def a_seed_draws_the_same_tokens_as_transformers_loop(scratch: Path) -> None:
    for name in NAMES:
        _, model = both(name, scratch)
        with in_python(model):
            expected = generate(name, model, "batch", **SAMPLED, min_new_tokens=1)
            assert tier(model) == 0, (name, djinn.explain(model))
        found = generate(name, model, "batch", **SAMPLED, min_new_tokens=1)
        assert tier(model) == 2, (name, djinn.explain(model))
        assert torch.equal(found.cpu(), expected.cpu()), name


@case
def rows_that_end_apart_are_padded_as_on_the_cpu(scratch: Path) -> None:
    for name in NAMES:
        one, other = both(name, scratch)
        whole = generate(name, one, "batch")[:, -zoo.NEW_TOKENS :]
        stops = [int(whole[0, 9]), int(whole[1, 20])]
        options = {"eos_token_id": stops, "min_new_tokens": 0}
        found, expected = (generate(name, model, "batch", **options) for model in (other, one))
        assert torch.equal(found.cpu(), expected), name


@case
def a_worker_that_is_killed_changes_no_token(scratch: Path) -> None:
    for name in NAMES:
        _, model = both(name, scratch)
        expected, deaths = generate(name, model, "one"), len(killed)
        found = generate(name, model, "one", streamer=Killer(*DEAD))
        assert torch.equal(found, expected), name
        assert tier(model) == 2 and len(killed) == deaths + len(DEAD), name


@case
def the_cache_is_that_of_the_cpu(scratch: Path) -> None:
    for name in NAMES:
        held = []
        for model in both(name, scratch):
            result = generate(name, model, "one", return_dict_in_generate=True)
            caches = [one for one in result.values() if hasattr(one, "get_seq_length")]
            held.append(tensors(caches))
        same(*held)


@case
def a_conversation_outgrows_its_window(scratch: Path) -> None:
    """Turn by turn: within the window, across its end with one token and with many, beyond it."""
    one, other = both("gemma2", scratch)
    turns = [(5, 4), (1, 9), (6, 4), (1, 3), (20, 6)]
    for rows in (1, 3):
        said = []
        for model in (one, other):
            cache = DynamicCache(config=model.config)
            ids = torch.zeros(rows, 0, dtype=torch.int64)
            mask = torch.zeros(rows, 0, dtype=torch.int64)
            for number, (asked, told) in enumerate(turns):
                words = zoo.words(rows, asked, stream=10 + number)
                looks = torch.ones_like(words)
                if number == 0 and rows > 1:
                    words[1, :2], looks[1, :2] = zoo.PAD, 0
                mask = torch.cat([mask, looks, torch.ones(rows, told, dtype=torch.int64)], 1)
                ids = model.generate(
                    torch.cat([ids, words], 1).to(model.device),
                    attention_mask=mask[:, :-told].to(model.device),
                    past_key_values=cache,
                    max_new_tokens=told,
                    min_new_tokens=told,
                    do_sample=False,
                    pad_token_id=zoo.PAD,
                ).cpu()
                assert model is one or tier(other) == 2, (rows, number, djinn.explain(other))
            said.append(ids)
        assert torch.equal(*said), rows


@case
def a_second_turn_goes_on_from_what_the_first_left(scratch: Path) -> None:
    """What was taken over is an ordinary cache afterwards, and can be cropped."""
    for name in ("bloom", "git"):
        said = []
        for model in both(name, scratch):
            cache = DynamicCache()
            ids = generate(name, model, "one", past_key_values=cache).cpu()
            cache.crop(-4)
            asked = torch.cat([ids[:, :-3], zoo.words(1, 5, stream=12)], 1)
            rest = {"pad_token_id": zoo.PAD, "max_new_tokens": 6, "do_sample": False}
            found = model.generate(asked.to(model.device), past_key_values=cache, **rest)
            said.append([found.cpu(), *tensors(cache)])
        same(*said)


@case
def what_is_refused_leaves_the_callers_cache_as_it_was(scratch: Path) -> None:
    """The prompt is computed when it turns out that later tokens are no program."""
    name = "AriaTextForCausalLM"
    one, other = both(name, scratch)
    for _ in range(2):  # the second time it is known
        said = []
        for model in (one, other):
            cache = DynamicCache()
            ids = generate(
                name, model, "one", past_key_values=cache, max_new_tokens=4, min_new_tokens=4
            )
            said.append([ids.cpu(), *tensors(cache)])
        assert tier(other) == 0 and "looks at a value" in djinn.explain(other)["why"]
        same(*said)


@case
def a_generation_that_is_refused_behind_its_prompt_begins_anew(scratch: Path) -> None:
    one, other = both("t5", scratch)
    stop = f"w{int(generate('t5', one, 'batch')[1, 9])}"
    words = word_tokenizer()
    words.add_tokens(["abcdef"])  # transformers tells by it how words are joined
    of_string = {"stop_strings": stop, "tokenizer": words, "min_new_tokens": 0}

    def no_group(*_: Any) -> None:
        raise NotInDaemon("no sequence group is to be had")

    for options, group_for in ((of_string, generation.group_for), ({}, no_group)):
        said = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generation, "group_for", group_for)
            for model in (one, other):
                result = generate("t5", model, "batch", return_dict_in_generate=True, **options)
                said.append([result.sequences.cpu(), *tensors([result.past_key_values])])
        assert tier(other) == 0, djinn.explain(other)
        same(*said)


@case
def a_forward_that_keeps_states_in_its_modules_goes_on_from_its_own(scratch: Path) -> None:
    """A capture leaves none there: it would have no value."""
    one, other = both("RecurrentGemmaForCausalLM", scratch)
    for _ in range(2):
        found, expected = (
            generate("RecurrentGemmaForCausalLM", model, "one", max_new_tokens=4, min_new_tokens=4)
            for model in (other, one)
        )
        assert torch.equal(found.cpu(), expected)
    assert tier(other) == 0 and "in its cache" in djinn.explain(other)["why"]


if __name__ == "__main__":
    loads.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:], CASES)
