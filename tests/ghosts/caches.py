# SPDX-License-Identifier: Apache-2.0
"""What a ghost's own cache must do, each a function, done with a local model's DynamicCache and
with a ghost's: the results are the same bits. All run in one process, as those of loads.py.

    caches.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import djinn
import loads
import torch
import transformers
import zoo
from loads import DEVICE, Case
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from users import KillingProcessor, Unchanged, both, in_python, killed, tier

CASES: dict[str, Case] = {}
GROWING = ("llama", "qwen2", "gpt2")
NAMES = (*GROWING, "mistral")
LONG = 64  # tokens of a prompt whose keys are larger than all else in a step
one_row = torch.tensor([[5, 9, 17, 3, 44, 8]])
padded = torch.tensor([[5, 9, 17, 3, 44, 8], [0, 0, 0, 7, 8, 9], [0, 12, 13, 14, 15, 16]])


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# --- helpers --------------------------------------------------------------------------------------


def generate(model: PreTrainedModel, prompt: torch.Tensor, **options: Any) -> Any:
    """With transformers' own loop, and recorded operators."""
    block = next(one for one in model.modules() if type(one).__name__.endswith(("Layer", "Block")))
    hook = block.register_forward_hook(lambda *_: None)
    given = {"input_ids": prompt, "attention_mask": (prompt != zoo.PAD).long()}
    keywords = {one: tensor.to(model.device) for one, tensor in given.items()}
    keywords |= zoo.GREEDY | in_python(Unchanged()) | {"pad_token_id": zoo.PAD} | options
    try:
        return model.generate(**keywords, return_dict_in_generate=True)
    finally:
        hook.remove()


@torch.no_grad()
def step(model: PreTrainedModel, tokens: torch.Tensor, cache: Any = None) -> Any:
    return model(input_ids=tokens.to(model.device), past_key_values=cache, use_cache=True)


def tensors(cache: Any) -> list[torch.Tensor]:
    return [one.cpu() for layer in cache.layers for one in (layer.keys, layer.values)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, number
        assert torch.equal(a, b), number


def same_by_steps(scratch: Path, run: Callable[[PreTrainedModel], list[torch.Tensor]]) -> None:
    """run() gives tensors; those of a ghost are those of a local model."""
    for name in NAMES:
        one, other = both(name, scratch)
        same(*([tensor.cpu() for tensor in run(model)] for model in (one, other)))


def grows(cache: Any) -> bool:
    from djinn.torch.cache import GrowingLayer

    return {type(layer) for layer in cache.layers} == {GrowingLayer}


def place(cache: Any) -> int:
    """Where the first layer's keys are."""
    return cache.layers[0].keys.untyped_storage().data_ptr()


def numbers(count: int, first: int = 0) -> torch.Tensor:
    return (torch.arange(first, first + count)[None] * 7) % 100 + zoo.FIRST_WORD


@dataclass(frozen=True)
class Call:
    operator: str
    shapes: tuple[torch.Size, ...]  # of its arguments
    keywords: dict[str, Any]
    made: int  # elements of a result that shares no bytes with an argument


class Seen(TorchDispatchMode):
    """The operators that are called. It holds no tensor of theirs, for a cache would see that."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [one for one in args if isinstance(one, torch.Tensor)]
        places = {one.untyped_storage().data_ptr() for one in given}
        is_new = (
            isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in places
        )
        keywords = {
            name: one for name, one in (kwargs or {}).items() if not isinstance(one, torch.Tensor)
        }
        shapes = tuple(one.shape for one in given)
        self.calls.append(Call(str(function), shapes, keywords, result.numel() if is_new else 0))
        return result

    def of(self, operator: str) -> list[Call]:
        return [call for call in self.calls if call.operator.startswith(operator)]


# --- what a step does -----------------------------------------------------------------------------


@contextmanager
def seen_step(model: PreTrainedModel, rows: int, masked: bool) -> Iterator[Seen]:
    """A step after LONG tokens and one more, whose keys are in place already."""
    prompt = numbers(LONG).expand(rows, -1)
    mask = torch.ones(rows, LONG + 2, dtype=torch.int64)
    if masked:
        mask[0, :3] = 0
    mask = mask.to(DEVICE)
    call = {"use_cache": True, "past_key_values": None}
    with torch.no_grad():
        for begin, end in ((0, LONG), (LONG, LONG + 1)):
            part = torch.cat([prompt, prompt[:, :2]], dim=1)[:, begin:end].to(DEVICE)
            out = model(input_ids=part, attention_mask=mask[:, :end], **call)
            call["past_key_values"] = out.past_key_values
        with Seen() as seen:
            model(input_ids=prompt[:, 1:2].to(DEVICE), attention_mask=mask, **call)
        yield seen


@case
def a_step_appends_in_place_and_makes_nothing_as_large_as_the_cache(scratch: Path) -> None:
    for name in GROWING:
        _, model = both(name, scratch)
        layers = model.config.num_hidden_layers
        for rows, masked in ((1, False), (3, False), (3, True)):
            with seen_step(model, rows, masked) as seen:
                assert len(seen.of("djinn.kv_append")) == 2 * layers
                attention = seen.of("aten.scaled_dot_product_attention")
                assert len(attention) == layers
                keys = min(call.shapes[1].numel() for call in attention)
                for call in seen.calls:
                    assert call.made < keys, (name, call)


@case
def heads_that_share_keys_are_not_repeated(scratch: Path) -> None:
    _, model = both("llama", scratch)
    shared = model.config.num_key_value_heads
    assert shared < model.config.num_attention_heads
    for masked in (False, True):
        with seen_step(model, 2, masked) as seen:
            attention = seen.of("aten.scaled_dot_product_attention")
            assert len(attention) == model.config.num_hidden_layers
            for call in attention:
                assert call.shapes[1][1] == shared
                assert call.keywords["enable_gqa"]


@case
def keys_that_lie_across_are_attended_to_with_the_same_bits(scratch: Path) -> None:
    """As a convolution over tokens leaves them: the last dimension is not dense."""
    both("llama", scratch)  # enables djinn
    noise = torch.Generator().manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 4, True
    query = torch.randn(3, 16, 11, 128, generator=noise)
    mask = torch.randn(3, 16, 11, 11, generator=noise)
    dense = torch.randn(3, 4, 11, 128, generator=noise)
    across = torch.randn(3, 4, 128, 11, generator=noise).transpose(2, 3)
    for keys, values in ((across, across), (across, dense), (dense, across), (dense, dense)):
        given = (query, keys, values, mask)
        with torch.no_grad():
            here, _ = sdpa_attention_forward(module, *given)
            there, _ = sdpa_attention_forward(module, *(one.to(DEVICE) for one in given))
        assert torch.equal(here, there.cpu()), (keys.stride(), values.stride())


# --- the same as with transformers' own cache -----------------------------------------------------


@case
def greedy_tokens_and_caches_are_the_same(scratch: Path) -> None:
    for name in NAMES:
        one, other = both(name, scratch)
        for prompt in (one_row, padded):
            a, b = (generate(model, prompt) for model in (one, other))
            assert a.sequences.tolist() == b.sequences.tolist(), name
            assert tier(other) == 0, djinn.explain(other)
            same(tensors(a.past_key_values), tensors(b.past_key_values))
            kinds = {type(layer) for layer in b.past_key_values.layers}
            assert grows(b.past_key_values) or kinds == {DynamicSlidingWindowLayer}, name
            assert grows(b.past_key_values) == (name in GROWING), name


@case
def eager_attention_is_the_same(scratch: Path) -> None:
    for name in GROWING:
        one, other = both(name, scratch)
        for model in (one, other):
            model.set_attn_implementation("eager")
        a, b = (generate(model, padded).sequences.tolist() for model in (one, other))
        assert a == b, name


@case
def beams_are_the_same(scratch: Path) -> None:
    for name in NAMES:
        one, other = both(name, scratch)
        options = {"num_beams": 3, "num_return_sequences": 2}
        a, b = (generate(model, padded, **options) for model in (one, other))
        assert a.sequences.tolist() == b.sequences.tolist(), name


@case
def a_conversation_goes_on(scratch: Path) -> None:
    for name in NAMES:
        said = []
        for model in both(name, scratch):
            first = generate(model, one_row, max_new_tokens=8, min_new_tokens=8)
            asked = torch.cat([first.sequences.cpu(), numbers(3)], dim=1)
            cache = first.past_key_values
            second = generate(model, asked, past_key_values=cache)
            assert second.past_key_values is cache
            said.append((second.sequences.tolist(), tensors(cache)))
        assert said[0][0] == said[1][0], name
        same(said[0][1], said[1][1])


@case
def crop_and_go_on_are_the_same(scratch: Path) -> None:
    def run(model: PreTrainedModel) -> list[torch.Tensor]:
        cache = step(model, numbers(4)).past_key_values
        kept = []
        for removed, added in ((0, 1), (-2, 2), (-1, 1), (-3, 4)):
            if removed:
                cache.crop(removed)
            kept.append(step(model, numbers(added, first=removed + 20), cache).logits)
        return kept + tensors(cache)

    same_by_steps(scratch, run)


@case
def rows_are_chosen_repeated_and_zeroed_the_same(scratch: Path) -> None:
    def run(model: PreTrainedModel) -> list[torch.Tensor]:
        cache = step(model, numbers(6).view(2, 3)).past_key_values
        kept = [step(model, numbers(2).view(2, 1), cache).logits]
        for change in (
            lambda: cache.reorder_cache(torch.tensor([1, 1], device=model.device)),
            lambda: cache.batch_repeat_interleave(2),
            lambda: cache.batch_select_indices(torch.tensor([3, 0, 1], device=model.device)),
            lambda: cache.reset() if not any(cache.is_sliding) else None,
        ):
            change()
            rows = cache.layers[0].keys.shape[0]
            kept.append(step(model, numbers(rows).view(rows, 1), cache).logits)
        return kept + tensors(cache)

    same_by_steps(scratch, run)


@case
def a_copy_of_a_cache_is_one_of_its_own(scratch: Path) -> None:
    def run(model: PreTrainedModel) -> list[torch.Tensor]:
        cache = step(model, numbers(3)).past_key_values
        step(model, numbers(2), cache)
        copied = copy.deepcopy(cache)
        kept = [step(model, numbers(1, first=50), one).logits for one in (cache, copied, copied)]
        return kept + tensors(cache) + tensors(copied)

    same_by_steps(scratch, run)


@case
def a_cache_of_an_inference_mode_goes_on_outside_of_it(scratch: Path) -> None:
    def run(model: PreTrainedModel) -> list[torch.Tensor]:
        with torch.inference_mode():
            cache = model(input_ids=numbers(3).to(model.device), use_cache=True).past_key_values
            model(input_ids=numbers(1).to(model.device), past_key_values=cache)
        logits = step(model, numbers(1), cache).logits
        with torch.inference_mode():
            more = model(input_ids=numbers(1).to(model.device), past_key_values=cache).logits
        return [logits, more, *tensors(cache)]

    same_by_steps(scratch, run)


@case
def gradients_through_a_cached_prefix_are_the_same(scratch: Path) -> None:
    found = []
    for model in both("llama", scratch):
        cache = step(model, numbers(4)).past_key_values
        step(model, numbers(2), cache)
        attention = model.model.layers[0].self_attn
        chosen = [attention.k_proj.weight, attention.v_proj.weight, attention.q_proj.weight]
        for weight in chosen:
            weight.requires_grad_(True)
        batch = numbers(5, first=30).to(model.device)
        model(input_ids=batch, labels=batch, past_key_values=cache).loss.backward()
        found.append([weight.grad.cpu() for weight in chosen])
    same(*found)


@case
def a_worker_killed_between_appends_changes_no_token(scratch: Path) -> None:
    _, model = both("llama", scratch)
    expected, deaths = generate(model, one_row), len(killed)
    found = generate(model, one_row, **in_python(KillingProcessor(1, 9, 30)))
    assert found.sequences.tolist() == expected.sequences.tolist()
    same(tensors(found.past_key_values), tensors(expected.past_key_values))
    assert len(killed) == deaths + 3 and grows(found.past_key_values)


# --- views that are kept --------------------------------------------------------------------------


@case
def a_kept_view_survives_append_crop_and_reset(scratch: Path) -> None:
    for name in GROWING:
        _, model = both(name, scratch)
        cache = step(model, numbers(5)).past_key_values
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []

        def keep(cache: Any = cache, kept: list[Any] = kept) -> None:
            for one in (cache.layers[0].keys, cache.layers[-1].values[:, :, 1:3]):
                kept.append((one, one.cpu().clone()))

        keep()
        for change in (
            lambda cache: None,
            lambda cache: cache.crop(-3),
            lambda cache: cache.crop(-1),
            lambda cache: cache.reorder_cache(torch.tensor([0], device=DEVICE)),
            lambda cache: cache.reset(),
        ):
            change(cache)
            step(model, numbers(2, first=60), cache)
            keep()
            for number, (view, was) in enumerate(kept):
                assert torch.equal(view.cpu(), was), (name, number)


@case
def what_is_written_to_a_kept_view_stays_there(scratch: Path) -> None:
    def run(model: PreTrainedModel) -> list[torch.Tensor]:
        cache = step(model, numbers(5)).past_key_values
        step(model, numbers(1), cache)
        held = cache.layers[0].keys
        step(model, numbers(1), cache)
        held.zero_()
        return [step(model, numbers(1), cache).logits, held, *tensors(cache)]

    same_by_steps(scratch, run)


@case
def a_kept_view_costs_one_copy(scratch: Path) -> None:
    _, model = both("llama", scratch)
    cache = step(model, numbers(5)).past_key_values
    step(model, numbers(1), cache)
    where = [place(cache)]
    held = cache.layers[0].keys
    for _ in range(4):
        step(model, numbers(1), cache)
        where.append(place(cache))
    assert len(set(where)) == 2 and where[0] != where[1] == where[-1], where
    cache.crop(-3)
    step(model, numbers(1), cache)
    assert place(cache) == where[-1]  # nobody else saw what was removed
    assert held.shape[2] == 6


@case
def a_cache_grows_by_doubling(scratch: Path) -> None:
    _, model = both("llama", scratch)
    cache = step(model, numbers(1)).past_key_values
    where = []
    for _ in range(150):
        step(model, numbers(1), cache)
        where.append(place(cache))
    assert len(set(where)) <= 3, where
    assert cache.get_seq_length() == 151


# --- whose cache it is ----------------------------------------------------------------------------


@case
def a_users_own_cache_is_left_as_it_is(scratch: Path) -> None:
    for name in GROWING:
        one, other = both(name, scratch)
        results = []
        for model in (one, other):
            caches = [DynamicCache(), DynamicCache(config=model.config)]
            found = [generate(model, one_row, past_key_values=cache) for cache in caches]
            results.append([result.sequences.tolist() for result in found])
        assert results[0] == results[1], name
        for cache in caches:
            assert {type(layer) for layer in cache.layers} == {DynamicLayer}
            assert cache.get_seq_length() == one_row.numel() + zoo.NEW_TOKENS - 1


@case
def a_local_models_cache_is_left_as_it_is(scratch: Path) -> None:
    one, other = both("llama", scratch)
    assert grows(step(other, one_row).past_key_values)
    for cache in (step(one, one_row).past_key_values, generate(one, one_row).past_key_values):
        assert {type(layer) for layer in cache.layers} == {DynamicLayer}


@case
def encoder_decoders_are_the_same(scratch: Path) -> None:
    for name in ("t5", "whisper"):
        one, other = both(name, scratch)
        inputs = zoo.entry(name).make_inputs(one.config, "one")
        inputs = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
        said = []
        for model in (one, other):
            given = {key: value.to(model.device) for key, value in inputs.items()}
            said.append(model.generate(**given, **zoo.GREEDY, num_beams=2).tolist())
        assert said[0] == said[1], name


@case
def disable_restores_every_original(scratch: Path) -> None:
    del scratch
    from transformers.integrations import sdpa_attention

    def attributes() -> list[int]:
        owners = (transformers.GenerationMixin, DynamicCache, sdpa_attention)
        return [id(one) for owner in owners for one in vars(owner).values()]

    djinn.disable()
    before = attributes()
    djinn.enable()
    assert attributes() != before
    djinn.disable()
    assert attributes() == before


if __name__ == "__main__":
    loads.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:], CASES)
