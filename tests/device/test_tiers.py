# SPDX-License-Identifier: Apache-2.0
"""Three ways to the same bits: operators one by one, a call as a program, the loop in djinnd."""

import copy
from pathlib import Path
from typing import Any

import djinn
import llama
import pytest
import torch
import transformers
from djinn.torch import explain, generation
from llama import EVERY, GREEDY, RETURNED, Unknown, on_device, prompt
from private_daemon import Daemon
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import EosTokenCriteria

pytestmark = pytest.mark.usefixtures("enabled")

SAMPLED = {
    "max_new_tokens": 24,
    "do_sample": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
PYTHON = {"logits_processor": LogitsProcessorList([Unknown()])}


@pytest.mark.parametrize(("rows", "tokens", "padded"), [(1, 9, False), (3, 7, True), (2, 1, False)])
def test_greedy_tokens_are_those_of_the_cpu_on_both_ways(
    local: Any, ghost: Any, rows: int, tokens: int, padded: bool
) -> None:
    inputs = prompt(rows, tokens, padded)
    expected = local.generate(**inputs, **GREEDY)
    for options, tier in (({}, 2), (PYTHON, 1), ({}, 2)):
        found = ghost.generate(**on_device(inputs), **GREEDY, **options)
        assert torch.equal(found.cpu(), expected), tier
        assert djinn.explain(ghost)["tier"] == tier, djinn.explain(ghost)


def test_an_option_that_djinnds_loop_does_not_know_is_a_type_error(
    ghost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = generation.options_of
    monkeypatch.setattr(
        generation, "options_of", lambda *given: {**known(*given), "temprature": 0.5}
    )
    with pytest.raises(TypeError, match="'temprature'"):
        ghost.generate(**on_device(prompt(1, 9, False)), **GREEDY)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 0.7, "top_k": 12},
        {"top_p": 0.8, "top_k": 0},
        {"min_p": 0.05, "temperature": 1.3, "repetition_penalty": 1.2, "min_new_tokens": 5},
    ],
    ids=str,
)
def test_a_seed_draws_the_same_tokens_on_both_ways(ghost: Any, rule: dict[str, Any]) -> None:
    inputs = on_device(prompt(2, 6, padded=True))
    drawn = []
    for options in ({}, PYTHON):
        torch.manual_seed(77)
        first = ghost.generate(**inputs, **SAMPLED, **rule, **options).cpu()
        second = ghost.generate(**inputs, **SAMPLED, **rule, **options).cpu()
        assert first.shape != second.shape or not torch.equal(first, second), "the seed moves on"
        drawn.append((first, second))
    for a, b in zip(*drawn, strict=True):
        assert torch.equal(a, b)


def test_a_streamer_sees_each_token_once_and_in_order(ghost: Any) -> None:
    class Streamer(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.seen: list[int] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            self.seen += value.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    streamer = Streamer()
    result = ghost.generate(**on_device(prompt(1, 5)), **GREEDY, streamer=streamer)
    assert djinn.explain(ghost)["tier"] == 2
    assert streamer.seen == result.flatten().tolist() and streamer.ended == 1


def test_a_streamer_that_fails_raises_here_and_breaks_nothing(ghost: Any) -> None:
    class Failing(transformers.generation.streamers.BaseStreamer):
        def put(self, value: torch.Tensor) -> None:
            if value.numel() == 1:
                raise LookupError("no such word")

        def end(self) -> None:
            pass

    with pytest.raises(LookupError, match="no such word"):
        ghost.generate(**on_device(prompt(1, 5)), **GREEDY, streamer=Failing())
    assert ghost.generate(**on_device(prompt(1, 5)), **GREEDY).shape == (1, 29)


def test_a_call_like_one_before_is_replayed_with_the_same_bits(local: Any, ghost: Any) -> None:
    inputs = prompt(2, 8)
    tiers = []
    for seed in range(4):
        inputs["input_ids"] = (inputs["input_ids"] + seed) % llama.VOCABULARY
        expected = local(**inputs, use_cache=False).logits
        found = ghost(**on_device(inputs), use_cache=False).logits
        tiers.append(djinn.explain(ghost)["tier"])
        assert torch.equal(found.cpu(), expected)
    assert tiers == [0, 1, 1, 1]


def test_values_that_the_code_looks_at_are_guards(local: Any, ghost: Any) -> None:
    for padded in (False, False, False, True, True, True, False):
        inputs = prompt(2, 8, padded)
        expected = local(**inputs, use_cache=False).logits
        found = ghost(**on_device(inputs), use_cache=False).logits
        assert torch.equal(found.cpu(), expected), padded
    assert djinn.explain(ghost)["tier"] == 1


class Encoder(transformers.BertModel):
    """Asks of its mask what a forward asks, and, if it is told to, how long the first row is."""

    looks = False

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found = super().forward(ids, attention_mask=attention_mask).last_hidden_state
        return found[:, : int(attention_mask[0].sum())] if self.looks else found


@pytest.mark.parametrize("looks", [False, True])
def test_a_program_holds_for_all_masks_of_which_the_code_sees_the_same(looks: bool) -> None:
    torch.manual_seed(19)
    config = transformers.BertConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=llama.VOCABULARY,
    )
    local = Encoder(config).eval().requires_grad_(False)
    local.looks = looks
    ghost = copy.deepcopy(local).to(djinn.device(0))
    tiers = []
    for turn in range(16):
        inputs = {"ids": prompt(3, 8)["input_ids"], "attention_mask": torch.ones(3, 8).long()}
        lengths = (torch.arange(3) + turn) % 8 + 1 if turn % 4 else torch.tensor([8, 8, 8])
        inputs["attention_mask"][torch.arange(8) >= lengths[:, None]] = 0
        found = ghost(**on_device(inputs))
        tiers.append(djinn.explain(ghost)["tier"])
        assert torch.equal(found.cpu(), local(**inputs)), turn
    if looks:  # each length has a program
        assert tiers[:8] == [0, 1, 1, 1, 1, 1, 1, 1] and tiers[8:] == [1] * 8
    else:
        assert tiers == [0] + [1] * 15


def test_a_hook_sees_every_call_and_may_change_it(local: Any, ghost: Any) -> None:
    inputs = prompt(1, 6)
    for _ in range(3):
        ghost(**on_device(inputs), use_cache=False)
    seen = []

    def edit(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.device.type)
        return output * 0.5

    expected = []
    for model in (local, ghost):
        hook = model.model.layers[0].mlp.register_forward_hook(edit)
        there = on_device(inputs) if model is ghost else inputs
        expected.append(model(**there, use_cache=False).logits.cpu())
        hook.remove()
    assert seen == ["cpu", "remote_accelerator"]
    assert torch.equal(*expected)
    assert "hook" in djinn.explain(ghost)["why"]


def test_a_changed_weight_is_noticed_and_forks(local: Any, ghost: Any) -> None:
    inputs = prompt(1, 6)
    for _ in range(3):
        before = ghost(**on_device(inputs), use_cache=False).logits.cpu()
    tokens = ghost.generate(**on_device(inputs), **GREEDY).cpu()
    with torch.no_grad():
        ghost.lm_head.weight.mul_(-1)
    after = ghost(**on_device(inputs), use_cache=False).logits.cpu()
    assert torch.equal(after, -before)
    changed = ghost.generate(**on_device(inputs), **GREEDY).cpu()
    assert not torch.equal(changed, tokens)
    assert torch.equal(local.generate(**inputs, **GREEDY), tokens), "the model itself is sealed"


def test_hidden_states_come_with_a_replayed_call(local: Any, ghost: Any) -> None:
    inputs = prompt(1, 6)
    options = {"use_cache": False, "output_hidden_states": True}
    expected = local(**inputs, **options).hidden_states
    for _ in range(3):
        found = ghost(**on_device(inputs), **options).hidden_states
        assert len(found) == len(expected) == 3
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    assert djinn.explain(ghost)["tier"] == 1


def test_options_that_the_loop_does_not_know_say_why(ghost: Any) -> None:
    inputs = on_device(prompt(1, 5))
    ghost.generate(**inputs, **GREEDY, **PYTHON)
    assert djinn.explain(ghost)["why"] == "the logits processor Unknown is Python"
    ghost.generate(**inputs, max_new_tokens=4, num_beams=2, pad_token_id=0, do_sample=False)
    ghost.generate(**inputs, **GREEDY, output_scores=True, return_dict_in_generate=True)
    assert djinn.explain(ghost)["why"] == "output_scores is asked for"


# --- a cache that outlives its generation ---------------------------------------------------------


def test_a_returned_dictionary_holds_what_the_cpu_gives(local: Any, ghost: Any) -> None:
    inputs = prompt(2, 7, padded=True)
    expected = local.generate(**inputs, **GREEDY, **RETURNED)
    for options, tier in (({}, 2), (PYTHON, 1)):
        found = ghost.generate(**on_device(inputs), **GREEDY, **RETURNED, **options)
        assert djinn.explain(ghost)["tier"] == tier, djinn.explain(ghost)
        assert type(found) is type(expected) and found.keys() == expected.keys()
        assert torch.equal(found.sequences.cpu(), expected.sequences)
        cache = found.past_key_values
        assert cache.get_seq_length() == expected.past_key_values.get_seq_length() == 30
        assert len(cache.layers) == len(expected.past_key_values.layers)
        for ours, theirs in zip(cache.layers, expected.past_key_values.layers, strict=True):
            rows = [slice(0, 30), slice(1, 30)]  # what padding keeps is looked at by nobody
            for row, kept in enumerate(rows):
                assert torch.equal(ours.keys[row, :, kept].cpu(), theirs.keys[row, :, kept])
                assert torch.equal(ours.values[row, :, kept].cpu(), theirs.values[row, :, kept])
        assert type(cache) is transformers.DynamicCache and cache.get_seq_length() == 30


def converse(model: Any, cache: Any, tiers: list[int], options: list[Any], padded: bool) -> Any:
    """Three turns on one cache, of several new tokens, and of one; then, after a crop, another."""
    inputs = prompt(2, 6, padded)
    ids, mask = inputs["input_ids"].to(model.device), inputs["attention_mask"].to(model.device)
    turns = []
    for turn, new in enumerate((0, 4, 1, 3)):
        if turn == 3:
            cache.crop(-5)
            ids = ids[:, :-5]
        more = (torch.arange(2 * new).reshape(2, new) * 7 + 11 + turn) % llama.VOCABULARY
        ids = torch.cat([ids, more.to(model.device)], dim=1)
        ones = torch.ones(2, ids.shape[1] - mask.shape[1], dtype=mask.dtype, device=model.device)
        whole = torch.cat([mask, ones], dim=1)[:, : ids.shape[1]]
        rule = dict(GREEDY, max_new_tokens=9, min_new_tokens=9, **options[turn])
        found = model.generate(ids, attention_mask=whole, past_key_values=cache, **rule, **RETURNED)
        assert found.past_key_values is cache
        ids = found.sequences
        turns.append((ids.cpu(), cache.get_seq_length()))
        tiers.append(djinn.explain(model)["tier"])
    return turns


@pytest.mark.parametrize("padded", [False, True])
def test_a_conversation_goes_on_as_on_the_cpu(local: Any, ghost: Any, padded: bool) -> None:
    for options, expected in (
        ([{}, {}, {}, {}], [2, 2, 2, 2]),
        ([PYTHON, PYTHON, PYTHON, PYTHON], [1, 1, 1, 1]),
        ([{}, PYTHON, {}, PYTHON], [2, 1, 2, 1]),
        ([{"repetition_penalty": 1.3}] * 4, [2, 2, 2, 2]),
        ([{}, {"num_beams": 1, "output_hidden_states": True}, {}, {}], [2, 0, 0, 0]),
    ):
        theirs = converse(local, transformers.DynamicCache(), [], options, padded)
        tiers: list[int] = []
        ours = converse(ghost, transformers.DynamicCache(), tiers, options, padded)
        for (a, length), (b, other) in zip(ours, theirs, strict=True):
            assert torch.equal(a, b) and length == other, options
        assert tiers == expected, djinn.explain(ghost)


def test_a_cache_can_be_looked_at_copied_and_called_with(local: Any, ghost: Any) -> None:
    ended = []
    for model in (local, ghost):
        inputs = {name: one.to(model.device) for name, one in prompt(1, 6).items()}
        cache = transformers.DynamicCache(config=model.config)
        ids = model.generate(**inputs, **GREEDY, past_key_values=cache)
        twin = copy.deepcopy(cache)
        old = twin.layers[1].keys
        held = old.clone()
        next_ids = ids[:, -1:]
        logits = model(next_ids, past_key_values=cache).logits
        again = model(next_ids, past_key_values=twin).logits
        twin.crop(-3)
        model(next_ids, past_key_values=twin)
        assert torch.equal(logits, again)
        assert torch.equal(old.cpu(), held.cpu())
        assert cache.get_seq_length() == ids.shape[1] and twin.get_seq_length() == 28
        ended.append((ids.cpu(), logits.cpu(), old.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*ended, strict=True))


def test_ids_that_are_new_alone_go_on_where_the_cache_ends(local: Any, ghost: Any) -> None:
    said = []
    for model in (local, ghost):
        inputs = {name: one.to(model.device) for name, one in prompt(1, 6).items()}
        first = model.generate(**inputs, **GREEDY, **RETURNED)
        new = torch.tensor([[5, 9, 2]], device=model.device)
        mask = torch.ones(1, 32, dtype=torch.int64, device=model.device)
        second = model.generate(
            new, attention_mask=mask, past_key_values=first.past_key_values, **GREEDY
        )
        said.append(second.cpu())
    assert torch.equal(*said)
    assert djinn.explain(ghost)["tier"] == 2


def test_another_model_and_other_rows_do_not_take_a_cache_for_theirs(
    checkpoint: Path, local: Any, ghost: Any
) -> None:
    other = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    said = []
    for one, two in ((local, local), (ghost, other)):
        inputs = {name: tensor.to(one.device) for name, tensor in prompt(1, 6).items()}
        first = one.generate(**inputs, **GREEDY, **RETURNED)
        more = torch.cat([first.sequences, torch.tensor([[7]], device=one.device)], dim=1)
        said.append(two.generate(more, past_key_values=first.past_key_values, **GREEDY).cpu())
    assert torch.equal(*said)
    assert "another model" in djinn.explain(other)["why"]


# --- what the loop must not take for what it knows ------------------------------------------------


@pytest.mark.parametrize("tokens", [2, 8, 24, 60])
def test_a_group_is_dropped_after_the_steps_that_use_it(
    local: Any, ghost: Any, tokens: int
) -> None:
    inputs, options = prompt(1, 8), dict(EVERY, max_new_tokens=tokens)
    expected = local.generate(**inputs, **options)
    for more in (PYTHON, {"no_repeat_ngram_size": 40}):
        found = ghost.generate(**on_device(inputs), **options, **more)
        assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
        assert torch.equal(found.cpu(), expected)


def shifted(input_ids: torch.Tensor, given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "input_ids": (input_ids + 1) % llama.VOCABULARY}


class Preparing(transformers.LlamaForCausalLM):
    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        given = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return shifted(given["input_ids"], given)


class Updating(transformers.LlamaForCausalLM):
    updates = 0

    def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        self.updates += 1
        return super()._update_model_kwargs_for_generation(*args, **kwargs)


def test_a_class_that_prepares_inputs_its_own_way_is_asked(checkpoint: Path, local: Any) -> None:
    inputs, said = prompt(1, 8), []
    for options in ({"djinn": False}, {}):
        model = Preparing.from_pretrained(checkpoint, **options)
        there = {name: one.to(model.device) for name, one in inputs.items()}
        said += [model.generate(**there, **EVERY, **more).cpu() for more in ({}, PYTHON)]
    assert all(torch.equal(one, said[0]) for one in said)
    assert not torch.equal(said[0], local.generate(**inputs, **EVERY))
    assert djinn.explain(model)["why"].count("a prepare_inputs_for_generation of its own") == 1


def test_a_class_that_updates_its_arguments_its_own_way_is_asked(checkpoint: Path) -> None:
    model = Updating.from_pretrained(checkpoint)
    model.generate(**on_device(prompt(1, 8)), **EVERY)
    assert model.updates == EVERY["max_new_tokens"]


@pytest.mark.parametrize("wraps", [False, True])
def test_a_method_put_on_the_model_prepares_its_inputs(
    checkpoint: Path, ghost: Any, wraps: bool
) -> None:
    import functools

    said = []
    for options in ({"djinn": False}, {}):
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, **options)
        before = model.prepare_inputs_for_generation

        def prepare(input_ids: torch.Tensor, before: Any = before, **kwargs: Any) -> Any:
            given = before(input_ids, **kwargs)
            return shifted(given["input_ids"], given)

        method = functools.wraps(before)(prepare) if wraps else prepare
        model.prepare_inputs_for_generation = method
        there = {name: one.to(model.device) for name, one in prompt(1, 8).items()}
        said.append(model.generate(**there, **EVERY).cpu())
    assert torch.equal(*said)
    assert djinn.explain(model)["tier"] == 0


def test_phi3_begins_its_cache_anew_where_its_positions_change() -> None:
    config = transformers.Phi3Config(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=llama.VOCABULARY,
        pad_token_id=0,
        original_max_position_embeddings=48,
    )
    model = transformers.Phi3ForCausalLM(config).eval().to(djinn.device(0))
    tiers = []
    for tokens in (40, 41):  # with the prompt's: up to the change, and beyond
        model.generate(**on_device(prompt(1, 8)), **dict(EVERY, max_new_tokens=tokens))
        tiers.append(djinn.explain(model)["tier"])
    assert tiers == [2, 0], djinn.explain(model)


TWICE = "there are two {0}; the loop knows one"
ORDER = "the loop applies {0} before {1}"
FILTER = "a {0} has a filter_value other than -inf"
ENDS = "a {0} has other end tokens than the generation"
AT_ONCE = {"do_sample": True, "top_k": 0}


def processors(*given: Any) -> list[Any]:
    return [getattr(logits_process, name)(*args, **options) for name, args, options in given]


def given(name: str, *args: Any, **options: Any) -> tuple[str, Any, Any]:
    return name, args, options


@pytest.mark.parametrize(
    ("rule", "chain", "why"),
    [
        (
            AT_ONCE,
            [given("TemperatureLogitsWarper", 0.5), given("TemperatureLogitsWarper", 4.0)],
            TWICE.format("TemperatureLogitsWarper"),
        ),
        (
            {"do_sample": False},
            [
                given("RepetitionPenaltyLogitsProcessor", 1.5),
                given("RepetitionPenaltyLogitsProcessor", 2.0),
            ],
            TWICE.format("RepetitionPenaltyLogitsProcessor"),
        ),
        (
            AT_ONCE,
            [given("TopPLogitsWarper", 0.6), given("TemperatureLogitsWarper", 6.0)],
            ORDER.format("TemperatureLogitsWarper", "TopPLogitsWarper"),
        ),
        (
            AT_ONCE,
            [given("TopKLogitsWarper", 2), given("RepetitionPenaltyLogitsProcessor", 5.0)],
            ORDER.format("RepetitionPenaltyLogitsProcessor", "TopKLogitsWarper"),
        ),
        (
            AT_ONCE,
            [given("TopKLogitsWarper", 1, filter_value=0.0)],
            FILTER.format("TopKLogitsWarper"),
        ),
        (
            AT_ONCE,
            [given("TopPLogitsWarper", 0.5, filter_value=-1.0)],
            FILTER.format("TopPLogitsWarper"),
        ),
        (
            AT_ONCE,
            [given("MinPLogitsWarper", 0.5, filter_value=-1.0)],
            FILTER.format("MinPLogitsWarper"),
        ),
        (
            AT_ONCE,
            [given("TopPLogitsWarper", 0.0)],
            "a TopPLogitsWarper has the top_p 0.0",
        ),
        (
            {"do_sample": False},
            [given("TopKLogitsWarper", 1, filter_value=1000.0)],
            "a TopKLogitsWarper is given, and nothing is drawn",
        ),
        (
            {"do_sample": False, "eos_token_id": 1},
            [given("MinNewTokensLengthLogitsProcessor", 8, 20, list(range(3, 70)))],
            ENDS.format("MinNewTokensLengthLogitsProcessor"),
        ),
        (
            {"do_sample": False},
            [given("MinLengthLogitsProcessor", 30, list(range(3, 70)))],
            ENDS.format("MinLengthLogitsProcessor"),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_processors_that_are_not_the_loops_are_called(
    local: Any, ghost: Any, rule: dict[str, Any], chain: list[Any], why: str
) -> None:
    options = dict(EVERY, **rule)
    inputs, said = on_device(prompt(1, 8)), []
    for more in ([], [Unknown()]):
        chained = LogitsProcessorList(processors(*chain) + more)
        torch.manual_seed(7)
        said.append(ghost.generate(**inputs, **options, logits_processor=chained).cpu())
        if not more:
            assert djinn.explain(ghost).items() >= {"tier": 1, "why": why}.items()
    assert torch.equal(*said)
    if not rule["do_sample"]:
        chained = LogitsProcessorList(processors(*chain))
        expected = local.generate(**prompt(1, 8), **options, logits_processor=chained)
        assert torch.equal(said[0], expected)


def test_processors_in_the_loops_order_are_its_own(ghost: Any) -> None:
    chain = [
        given("RepetitionPenaltyLogitsProcessor", 1.2),
        given("MinNewTokensLengthLogitsProcessor", 8, 5, [1]),
        given("TemperatureLogitsWarper", 1.3),
        given("TopKLogitsWarper", 30),
        given("TopPLogitsWarper", 0.9),
        given("MinPLogitsWarper", 0.02),
    ]
    options = dict(EVERY, **AT_ONCE, eos_token_id=1)
    inputs, said = on_device(prompt(1, 8)), []
    for more, tier in (([], 2), ([Unknown()], 1)):
        chained = LogitsProcessorList(processors(*chain) + more)
        torch.manual_seed(7)
        said.append(ghost.generate(**inputs, **options, logits_processor=chained).cpu())
        assert djinn.explain(ghost)["tier"] == tier, djinn.explain(ghost)
    assert torch.equal(*said)


def test_the_first_of_two_end_criteria_counts_too(local: Any, ghost: Any) -> None:
    inputs = prompt(1, 8)
    drawn = local.generate(**inputs, **EVERY)[0, 8:].tolist()
    ends = [drawn[5], next(token for token in drawn[6:] if token not in drawn[:6])]
    said = []
    for model in (local, ghost):
        there = {name: one.to(model.device) for name, one in inputs.items()}
        both = StoppingCriteriaList([EosTokenCriteria([end]) for end in ends])
        said.append(model.generate(**there, **EVERY, stopping_criteria=both).cpu())
    assert torch.equal(*said)
    assert djinn.explain(ghost)["why"] == "there are two EosTokenCriteria; the loop knows one"


@pytest.mark.parametrize("token", [None, 3])
def test_logits_that_are_not_numbers_give_the_first_of_their_tokens(
    checkpoint: Path, token: int | None
) -> None:
    said = []
    for options in ({"djinn": False}, {}):
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, **options)
        weight = model.lm_head.weight
        with torch.no_grad():
            (weight if token is None else weight[token]).fill_(float("nan"))
        there = {name: one.to(model.device) for name, one in prompt(2, 8, padded=True).items()}
        said += [model.generate(**there, **EVERY, **more)[:, 8:].cpu() for more in ({}, PYTHON)]
    assert said[0].tolist() == [[token or 0] * 24] * 2
    assert all(torch.equal(one, said[0]) for one in said)


def test_why_a_call_is_slow_is_said_in_a_users_words(ghost: Any) -> None:
    ghost.generate(**on_device(prompt(33, 3)), **dict(GREEDY, max_new_tokens=2, min_new_tokens=2))
    assert "33 sequences at once" in djinn.explain(ghost)["why"]
    ghost.train()
    ghost(**on_device(prompt(1, 6)))
    assert "model.eval()" in djinn.explain(ghost)["why"]


def test_what_is_explained_is_so_before_a_call_and_while_djinn_is_disabled(
    local: Any, ghost: Any
) -> None:
    inputs = prompt(1, 6)
    assert djinn.explain(ghost)["tier"] is None
    assert "no call" in djinn.explain(ghost)["why"]
    ghost.generate(**on_device(inputs), **GREEDY)
    assert djinn.explain(ghost)["tier"] == 2
    djinn.disable()
    try:
        for _ in range(2):
            assert djinn.explain(ghost)["tier"] == 2, "its last call that was seen"
            assert djinn.explain(ghost)["why"] == explain.DISABLED_SINCE
            ghost(**on_device(inputs))
        assert djinn.explain(copy.deepcopy(ghost))["tier"] == 0, "a call of it would be recorded"
    finally:
        djinn.enable()
    assert djinn.explain(ghost)["tier"] is None, "what came before is no call since enable()"
    assert djinn.explain(local).items() >= {"tier": None, "why": explain.LOCAL}.items()
    assert djinn.explain(ghost.lm_head).items() >= {"tier": 0, "why": explain.FOREIGN}.items()


def test_djinnd_tells_which_tiers_this_process_says_it_took(
    device_daemon: Daemon, ghost: Any
) -> None:
    def stated() -> list[int]:
        (mine,) = [one for one in device_daemon.observer.sessions() if one["id"] == session]
        return [mine[f"stated_tier{tier}_calls"] for tier in range(3)]

    inputs = on_device(prompt(1, 7))
    ghost(**inputs, use_cache=False).logits.cpu()
    (session,) = {one["id"] for one in device_daemon.observer.sessions() if one["graphs_run"]}
    before = stated()
    for _ in range(3):
        ghost(**inputs, use_cache=False)
    ghost.generate(**inputs, **GREEDY)
    (ghost.lm_head.weight[0] + 1).cpu()  # what was stated crosses to another machine with a run
    assert [now - then for now, then in zip(stated(), before, strict=True)] == [0, 3, 1]


def test_bytes_that_cross_are_djinnds_count_on_each_tier(ghost: Any) -> None:
    inputs = on_device(prompt(1, 7))

    def crossed(tokens: int, **options: Any) -> int:
        counts = dict(GREEDY, max_new_tokens=tokens, min_new_tokens=tokens)
        before = djinn.explain(ghost)["bytes_crossed"]
        ghost.generate(**inputs, **counts, **options).cpu()
        return int(djinn.explain(ghost)["bytes_crossed"] - before)

    costs = []
    for tier, options in ((2, {}), (1, PYTHON)):
        for tokens in (8, 24):
            crossed(tokens, **options)  # what is sent once
        costs.append((crossed(24, **options) - crossed(8, **options)) / 16)
        assert djinn.explain(ghost)["tier"] == tier
    assert costs[0] >= 64, "a completion, and nothing was left out"
    assert costs[0] < costs[1], "a step is a submission of its own"
