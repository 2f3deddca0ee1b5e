# SPDX-License-Identifier: Apache-2.0
"""What djinnd is asked to generate: a call of transformers' loop over tokens as a job, or why not.

Call   the loop, with what it is given
Job    the call as djinnd sees it: tokens, padding, programs, and the group that holds the cache
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
)
from transformers.generation import stopping_criteria

from . import _device, groups, state
from .cache import GrowingLayer
from .capture import Kind, Programs, programs
from .groups import GroupCache, Held
from .state import DEVICE, NotInDaemon

ROWS_MAX = 32
POSITIONS_DEFAULT = 2048


@dataclass
class Call:
    """One of transformers' loop over tokens, `original`, with what it is given."""

    original: Any
    model: Any
    ids: torch.Tensor
    processors: Any
    criteria: Any
    config: Any
    options: dict[str, Any]  # the loop's others
    kwargs: dict[str, Any]  # for forwards

    def in_python(self) -> Any:
        return self.original(
            self.model,
            self.ids,
            logits_processor=self.processors,
            stopping_criteria=self.criteria,
            generation_config=self.config,
            **self.options,
            **self.kwargs,
        )


@dataclass
class Job:
    """A call, as far as both lower tiers need it."""

    cache: DynamicCache
    prompt: int  # columns of the ids that it is given
    past: int  # tokens of each row that the cache holds
    tokens: int  # and that come behind them
    padding: list[int]
    programs: Programs
    total: int  # token slots
    outlives: bool  # the cache is asked for again
    banks: int  # of the group: 2 if rows are to be reordered


def positions_of(model: Any) -> int:
    """How many tokens a row may have in all."""
    text = model.config.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None) or POSITIONS_DEFAULT
    chunk = getattr(text, "attention_chunk_size", None)
    if isinstance(chunk, int) and chunk > 0:
        most = min(most, chunk)
    if _home_of(model.prepare_inputs_for_generation) in (*BEGIN_ANEW, *BEGIN_ANEW_WITH_IMAGES):
        most = min(most, getattr(text, "original_max_position_embeddings", None) or most)
    return most


def window_of(model: Any) -> int:
    """How many tokens some of its layers look at; 0: all look at all."""
    text = model.config.get_text_config(decoder=True)
    window = getattr(text, "sliding_window", None)
    is_used = getattr(text, "use_sliding_window", True) and isinstance(window, int)
    return window if is_used and window > 0 else 0


def windows_of(model: Any, cache: DynamicCache, window: int) -> tuple[int, ...]:
    """What it keeps of each layer, 0 for all; none: it keeps all of all. A layer of chunks keeps
    all, since rows are no longer than a chunk (positions_of())."""
    chunk = getattr(model.config.get_text_config(decoder=True), "attention_chunk_size", None)
    windows = []
    for layer in cache.__dict__["layers"]:
        if type(layer) not in (DynamicLayer, GrowingLayer, DynamicSlidingWindowLayer):
            raise NotInDaemon(f"its cache has a {type(layer).__name__}")
        kept = getattr(layer, "sliding_window", 0)
        windows.append(0 if kept == chunk else kept)
    if any(one not in (0, window) for one in windows):
        raise NotInDaemon("its cache has other sliding windows than its configuration")
    return tuple(windows) if any(windows) else ()


# Methods that make what a forward is given in transformers' loop; captures have it as these modules
# make it.
OWN_WAYS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill")
# Models that give the cache up when a row outgrows the positions of their short factors.
BEGIN_ANEW = (
    "transformers.models.phi3.modeling_phi3",
    "transformers.models.phimoe.modeling_phimoe",
)
BEGIN_ANEW_WITH_IMAGES = ("transformers.models.phi4_multimodal.modeling_phi4_multimodal",)
REPRODUCED = (
    "transformers.generation.utils",
    "transformers.models.bloom.modeling_bloom",  # differs for a StaticCache
    # What these change is an input beside the ids, with which a call is refused.
    "transformers.models.ctrl.modeling_ctrl",
    "transformers.models.gemma3.modeling_gemma3",
    *BEGIN_ANEW,
    *BEGIN_ANEW_WITH_IMAGES,
)


def is_of_transformers(model: Any, name: str, within: str = "transformers.") -> bool:
    """Whether its method of that name is code of transformers, whichever class's."""
    method = getattr(model, name)
    is_own = getattr(method, "__self__", None) is model
    return is_own and _home_of(method).startswith(within)


def _home_of(method: Any) -> str:
    """The module that a method's code was written in, whatever it calls itself."""
    function = getattr(method, "__func__", method)
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _check_own_ways(model: Any) -> None:
    for name in OWN_WAYS:
        method = getattr(model, name)
        if getattr(method, "__self__", None) is not model or _home_of(method) not in REPRODUCED:
            raise NotInDaemon(f"it has a {name} of its own")


# Whoever gives ids that are here gets the result here.
PLACES = (DEVICE, torch.device("cpu"))
IGNORED = {"attention_mask", "past_key_values", "use_cache", "logits_to_keep", "position_ids"}


def _check_arguments(model: Any, ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> None:
    if ids.device not in PLACES:
        raise NotInDaemon(f"its ids are on {ids.device}, and would have to be on {DEVICE}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise NotInDaemon(f"its ids are {ids.dtype}, which no embedding takes")
    if model.config.is_encoder_decoder:
        raise NotInDaemon("it is an encoder-decoder")
    if model.training:
        raise NotInDaemon("it is in training mode: call model.eval() first")
    _check_own_ways(model)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise NotInDaemon(f"{name} is asked for")
    if config.prefill_chunk_size is not None or config.is_assistant:
        raise NotInDaemon("prefill in chunks, and assistants, take Python's loop")
    for name, value in kwargs.items():
        if name not in IGNORED and value is not None:
            raise NotInDaemon(f"the model is given {name}")
    cache = kwargs.get("past_key_values")
    if not kwargs.get("use_cache") or cache is None:
        raise NotInDaemon("it is to generate without a cache")
    if type(cache) is StaticCache:
        raise NotInDaemon("its cache is static, which is of use to compilers: leave it out")
    if type(cache) not in (DynamicCache, GroupCache) or getattr(cache, "offloading", False):
        raise NotInDaemon(f"its cache is a {type(cache).__name__}")


def _past(cache: DynamicCache, model: Any, rows: int) -> int:
    """How many tokens of each row the cache holds for djinnd."""
    held = groups.held_of(cache)
    if held is None:
        if cache.get_seq_length() != 0:
            raise NotInDaemon("its cache was not made by a generation in djinnd")
        return 0
    if held.model() is not model or held.geometry[0] != rows:
        raise NotInDaemon("its cache is of another model, or of other rows")
    return held.length


def _tokens(mask: torch.Tensor | None, prompt: int, past: int) -> int:
    """How many of the given ids are not in the cache. They are all ids, or the new ones alone, and
    then the mask is longer."""
    columns = prompt if mask is None else mask.shape[-1]
    tokens = columns - past
    if tokens < 1 or prompt not in (tokens, columns) or (mask is None and past):
        raise NotInDaemon("its ids do not go on where its cache ends")
    return tokens


def _padding(mask: torch.Tensor | None, rows: int, columns: int) -> list[int]:
    """Left padding of each row."""
    if mask is None:
        return [0] * rows
    if mask.dim() != 2 or mask.shape[1] != columns:
        raise NotInDaemon("its attention mask is not one of the prompt's tokens")
    known = mask.cpu().bool()
    padding = (~known).sum(dim=1)
    expected = torch.arange(columns)[None, :] >= padding[:, None]
    if not torch.equal(known, expected):
        raise NotInDaemon("rows are padded elsewhere than on their left")
    return padding.tolist()


def most_of(criteria: Any, prompt: int) -> int:
    kind = stopping_criteria.MaxLengthCriteria
    lengths = [one.max_length for one in criteria if isinstance(one, kind)]
    if not lengths or min(lengths) <= prompt:
        raise NotInDaemon("it has no length to stop at")
    return min(lengths)


def check_rows(rows: int) -> None:
    if rows > ROWS_MAX:
        raise NotInDaemon(
            f"it is to go on with {rows} sequences at once, counting beams, and djinnd's loop "
            f"takes at most {ROWS_MAX}: give it fewer at once"
        )


def check_call(call: Call) -> None:
    """Whether djinnd's loop can be given it, as far as that does not depend on its tokens."""
    _check_arguments(call.model, call.ids, call.config, call.kwargs)


def kind_of(model: Any, cache: DynamicCache, rows: int, masked: bool, continues: bool) -> Kind:
    window = window_of(model)
    windows = windows_of(model, cache, window)
    return Kind(rows, masked, continues, positions_of(model), window, windows)


def job_of(call: Call, banks: int = 1) -> Job:
    model, ids, kwargs = call.model, call.ids, call.kwargs
    check_call(call)
    rows, prompt = ids.shape
    check_rows(rows)
    cache, mask = kwargs["past_key_values"], kwargs.get("attention_mask")
    past = _past(cache, model, rows)
    tokens = _tokens(mask, prompt, past)
    total = past + tokens + most_of(call.criteria, prompt) - prompt
    most = positions_of(model)
    if total > most:
        raise NotInDaemon(too_many(total, most))
    padding = _padding(mask, rows, past + tokens)
    if any(one >= past + tokens for one in padding):
        raise NotInDaemon("a row is all padding")
    held = groups.held_of(cache)
    if held is not None and past and held.padding != padding:
        raise NotInDaemon("its rows are padded otherwise than in its cache")
    kind = kind_of(model, cache, rows, any(padding), past > 0)
    found = programs(model, kind, past, tokens, total)
    outlives = bool(call.config.return_dict_in_generate) or getattr(
        cache, "_is_user_defined", False
    )
    job = Job(cache, prompt, past, tokens, padding, found, total, outlives, banks)
    if held is not None and past and not _fits(held, job):
        raise NotInDaemon("its cache has no room for so many tokens")
    return job


def too_many(total: int, most: int) -> str:
    return (
        f"its prompt and new tokens may be {total}, and the model has positions for {most}: lower "
        "max_new_tokens, or give it a shorter prompt"
    )


def _fits(held: Held, job: Job) -> bool:
    return (
        job.total <= held.capacity
        and job.banks <= held.banks
        and held.geometry == job.programs.decode.geometry
    )


def group_for(model: Any, job: Job) -> Held:
    """The one that the cache holds, or a new one. Slots take memory when they are filled, so a
    cache that outlives its generation has room for all that may follow."""
    held = groups.held_of(job.cache)
    if held is not None and job.past:
        return held
    geometry = job.programs.decode.geometry
    capacity = positions_of(model) if job.outlives else job.total
    try:
        group = _device.Group((*geometry, capacity, job.banks))
    except RuntimeError as error:
        raise NotInDaemon(f"no sequence group is to be had: {state.first_line(error)}") from error
    return Held(
        group,
        geometry,
        capacity,
        job.banks,
        weakref.ref(model),
        job.padding,
        job.programs.decode.dims,
    )


__all__ = [
    *(
        "OWN_WAYS",
        "Call",
        "Job",
        "check_call",
        "check_rows",
        "group_for",
        "is_of_transformers",
        "job_of",
        "kind_of",
        "most_of",
    ),
    *("positions_of", "too_many", "window_of"),
]
