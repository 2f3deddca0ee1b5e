# SPDX-License-Identifier: Apache-2.0
"""`generate()` in the daemon: the loop over tokens runs there, without Python.

A model's forward is captured at a few sizes on inputs without values, and its recordings become two
programs, prefill and decode, whose keys and values live in a sequence group. Options that the loop
does not know leave it to transformers' own, whose forwards then run those programs a step at a
time; what cannot be captured takes recorded operators. `explain()` says which, and why.
"""

import inspect
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, StaticCache
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from . import _device, groups, notice, state
from .groups import GroupCache, Held
from .state import DEVICE, NotInDaemon
from .stopping import ASKED, Rows

ROWS_MAX = 32
STOP_TOKENS_MAX = 16
POSITIONS_DEFAULT = 2048


# --- capturing ------------------------------------------------------------------------------------


class _GroupLayer(CacheLayerMixin):
    """One layer's part of a sequence group under capture."""

    is_sliding = False

    def __init__(self, index: int, past: int, capacity: int) -> None:
        super().__init__()
        self.index, self.past, self.capacity = index, past, capacity
        self.geometry: tuple[int, int, int, torch.dtype] | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, dim = key_states.shape
        if value_states.shape != key_states.shape or value_states.dtype != key_states.dtype:
            raise NotInDaemon("its keys and values differ in shape or dtype")
        self.geometry = (rows, heads, dim, key_states.dtype)
        sizes = [rows, heads, self.capacity, dim]
        self.keys = _device.capture_buffer(self.index, False, key_states.dtype, sizes)
        self.values = _device.capture_buffer(self.index, True, key_states.dtype, sizes)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.geometry is not None:
            raise NotInDaemon("a layer appends to its cache twice in one call")
        self.lazy_initialization(key_states, value_states)
        end = self.past + key_states.shape[2]
        append = torch.ops.djinn.kv_append
        append(self.keys, key_states, self.past)
        append(self.values, value_states, self.past)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past + query_length, 0

    def get_seq_length(self) -> int:
        return self.past

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True)
class Size:
    """Where a forward is captured: new tokens, tokens before them, token slots of the group."""

    tokens: int
    past: int
    capacity: int


def _sizes(prefill: bool, past: bool) -> list[Size]:
    """Enough of them to tell the three apart, and one to check; no two numbers of one are equal."""
    if not prefill:
        return [Size(1, 5, 29), Size(1, 6, 29), Size(1, 5, 31), Size(1, 11, 41)]
    if not past:
        return [Size(7, 0, 29), Size(8, 0, 29), Size(7, 0, 31), Size(13, 0, 41)]
    return [Size(7, 5, 29), Size(8, 5, 29), Size(7, 6, 29), Size(7, 5, 31), Size(13, 11, 41)]


@dataclass
class Captured:
    template: Any
    geometry: tuple[int, int, int, int, torch.dtype]  # rows, layers, heads, dim
    output: type  # of a forward


def _capture_at(model: Any, rows: int, masked: bool, size: Size) -> tuple[Any, Any]:
    """The recording, with the group's geometry and the class of the forward's result."""
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    cache = Cache(layers=[_GroupLayer(i, size.past, size.capacity) for i in range(layers)])
    ids = _device.capture_input("token_ids", torch.int64, [rows, size.tokens], None)
    kwargs: dict[str, Any] = {"input_ids": ids, "past_key_values": cache, "use_cache": True}
    if "position_ids" in inspect.signature(type(model).forward).parameters:
        kwargs["position_ids"] = _device.capture_input(
            "positions", torch.int64, [rows, size.tokens], None
        )
    kwargs["attention_mask"] = _mask(rows, masked, size)
    if model._supports_logits_to_keep():
        kwargs["logits_to_keep"] = 1
    output = model(**kwargs, return_dict=True)
    logits, kind = output.logits, type(output)
    geometries = {layer.geometry for layer in cache.layers}
    if len(geometries) != 1 or None in geometries:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    (one,) = geometries
    geometry = (one[0], layers, *one[1:])
    del cache, kwargs, ids, output  # what the model keeps is refused, and these would look like it
    return _device.capture_finish([logits], True), (geometry, kind)


def _mask(rows: int, masked: bool, size: Size) -> torch.Tensor:
    """The mask of a prompt's tokens [rows, past + tokens], as transformers is given it. Code may
    look at its values: all ones without padding, and some row with a zero on its left with padding.
    It must not depend on which row, and how many."""
    keys = size.past + size.tokens
    if not masked:
        return torch.ones(rows, keys, dtype=torch.int64, device=DEVICE)
    queries = torch.arange(size.past, keys)[:, None]
    looks = torch.arange(keys)[None, :] <= queries
    looks = looks.expand(rows, 1, size.tokens, keys).clone()
    looks[0, :, :, 0] = False
    mask = _device.capture_input("attention_mask", torch.bool, list(looks.shape), looks)
    return mask.any(dim=2)[:, 0].to(torch.int64)


@dataclass(frozen=True)
class Kind:
    """What programs depend on, beside the model."""

    rows: int
    masked: bool
    continues: bool  # tokens are in the cache before the prompt
    most: int  # tokens of a row


def _capture(model: Any, kind: Kind, prefill: bool) -> Captured:
    after_some = kind.masked or kind.continues
    sizes = _sizes(prefill, after_some)
    recordings, found = [], None
    for size in sizes:
        try:
            with state.capturing(), torch.no_grad():
                recording, found = _capture_at(model, kind.rows, kind.masked, size)
        except NotInDaemon:
            raise
        except Exception as error:
            raise NotInDaemon(
                f"its forward cannot be captured: {state.first_line(error)}"
            ) from error
        recordings.append(recording)
    if prefill:
        symbols = [("tokens", 2, kind.most), ("past", 0, kind.most - 2 if after_some else 0)]
    else:
        symbols = [("tokens", 1, 1), ("past", 0, kind.most - 1)]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    try:
        template = _device.make_template(recordings, points, [*symbols, ("capacity", 2, kind.most)])
    except Exception as error:
        raise NotInDaemon(
            f"its recordings are no one program: {state.first_line(error)}"
        ) from error
    return Captured(template, *found)


def _programs(model: Any, kind: Kind, tokens: int) -> tuple[Captured, Captured]:
    """For a prompt of so many tokens, and for each token after it."""
    known = state.known_of(model)
    state.refresh(model, known)
    context = state.context()

    def program(prefill: bool) -> Captured:
        what = (kind, prefill)
        if not prefill:  # the same with or without a past
            what = (Kind(kind.rows, kind.masked, True, kind.most), prefill)
        key = (*what, context)
        if key not in known.captured:
            try:
                known.captured[key] = _capture(model, *what)
            except NotInDaemon as reason:
                known.captured[key] = str(reason)  # the exception would hold the model
        found = known.captured[key]
        if isinstance(found, str):
            raise NotInDaemon(found)
        return found

    return program(tokens > 1), program(False)


# --- options --------------------------------------------------------------------------------------


# In the order in which transformers makes them (GenerationMixin._get_logits_processor of 5.17), and
# the loop applies them. Those behind the first three are for sampling alone.
PROCESSORS = (
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.MinPLogitsWarper,
)
WARPERS = PROCESSORS[3:]
FORBIDDING = PROCESSORS[1:3]


def _options(call: "Call", job: "Job") -> dict[str, Any]:
    config = call.config
    options: dict[str, Any] = {"greedy": not config.do_sample}
    for name in ("output_scores", "output_logits"):
        if getattr(config, name, False) and config.return_dict_in_generate:
            raise NotInDaemon(f"{name} is asked for")
    options["max_new_tokens"] = job.total - job.past - job.tokens
    options["stop_tokens"] = _stop_tokens(call.criteria)
    _check_processors(call.processors, options)
    for processor in call.processors:
        _add_processor(options, processor, job.prompt)
    pad = config._pad_token_tensor
    options["pad_token"] = int(pad.item()) if pad is not None else 0
    return options


def _stop_tokens(criteria: Any) -> list[int]:
    stops: list[list[int]] = []
    for criterion in criteria:
        if type(criterion) is stopping_criteria.EosTokenCriteria:
            stops.append(criterion.eos_token_id.flatten().tolist())
        elif type(criterion) not in (stopping_criteria.MaxLengthCriteria, *ASKED):
            raise NotInDaemon(f"the stopping criterion {type(criterion).__name__} is Python")
    if len(stops) > 1:
        raise NotInDaemon("there are two EosTokenCriteria; the loop knows one")
    eos = stops[0] if stops else []
    if len(eos) > STOP_TOKENS_MAX:
        raise NotInDaemon(f"it has {len(eos)} end tokens; the loop knows {STOP_TOKENS_MAX}")
    return eos


def _check_processors(processors: Any, options: dict[str, Any]) -> None:
    """One of each kind, in the order that the loop has; each does what the loop does."""
    last = -1
    for processor in processors:
        kind = type(processor)
        name = kind.__name__
        if kind not in PROCESSORS:
            raise NotInDaemon(f"the logits processor {name} is Python")
        place = PROCESSORS.index(kind)
        if place == last:
            raise NotInDaemon(f"there are two {name}; the loop knows one")
        if place < last:
            raise NotInDaemon(f"the loop applies {name} before {PROCESSORS[last].__name__}")
        last = place
        if kind in WARPERS and options["greedy"]:
            raise NotInDaemon(f"a {name} is given, and nothing is drawn")
        if getattr(processor, "filter_value", -math.inf) != -math.inf:
            raise NotInDaemon(f"a {name} has a filter_value other than -inf")
        if getattr(processor, "min_tokens_to_keep", 1) != 1:
            raise NotInDaemon(f"a {name} keeps more than one token")
        if getattr(processor, "prompt_ignore_length", None):
            raise NotInDaemon(f"a {name} ignores a part of the prompt")
        if kind in FORBIDDING:
            forbidden = set(processor.eos_token_id.flatten().tolist())
            if forbidden != set(options["stop_tokens"]):
                raise NotInDaemon(f"a {name} has other end tokens than the generation")


def _add_processor(options: dict[str, Any], processor: Any, prompt: int) -> None:
    kind = type(processor)
    if kind is logits_process.RepetitionPenaltyLogitsProcessor:
        options["repetition_penalty"] = _number(processor, "penalty", 0, math.inf)
    elif kind is logits_process.MinLengthLogitsProcessor:
        options["min_new_tokens"] = max(processor.min_length - prompt, 0)
    elif kind is logits_process.MinNewTokensLengthLogitsProcessor:
        least = processor.min_new_tokens - (prompt - processor.prompt_length_to_skip)
        options["min_new_tokens"] = max(options.get("min_new_tokens", 0), least)
    elif kind is logits_process.TemperatureLogitsWarper:
        options["temperature"] = _number(processor, "temperature", 0, math.inf)
    elif kind is logits_process.TopKLogitsWarper:
        options["top_k"] = int(processor.top_k)
    elif kind is logits_process.TopPLogitsWarper:
        options["top_p"] = min(_number(processor, "top_p", 0, 2), 1.0)
    elif kind is logits_process.MinPLogitsWarper:
        options["min_p"] = _number(processor, "min_p", -1, 1)


def _number(processor: Any, name: str, above: float, below: float) -> float:
    """As the loop keeps it, in single precision: what it would round to a bound is beyond it."""
    value = getattr(processor, name)
    if not above < float(torch.tensor(value, dtype=torch.float32)) < below:
        raise NotInDaemon(f"a {type(processor).__name__} has the {name} {value}")
    return float(value)


def _positions(model: Any) -> int:
    """How many tokens a row may have in all."""
    text = model.config.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None) or POSITIONS_DEFAULT
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and window > 0 and getattr(text, "use_sliding_window", True):
            most = min(most, window)
    if _home_of(model.prepare_inputs_for_generation) in BEGIN_ANEW:
        most = min(most, getattr(text, "original_max_position_embeddings", most))
    return most


# What a forward is given in transformers' loop; the captures have it as these modules make it.
OWN_WAYS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prefill")
# Those that give the cache up when a row outgrows the positions of their short factors.
BEGIN_ANEW = (
    "transformers.models.phi3.modeling_phi3",
    "transformers.models.phimoe.modeling_phimoe",
)
REPRODUCED = (
    "transformers.generation.utils",
    "transformers.models.bloom.modeling_bloom",  # differs for a StaticCache
    *BEGIN_ANEW,
)


def _home_of(method: Any) -> str:
    """The module that a method's code was written in, whatever it calls itself."""
    function = getattr(method, "__func__", method)
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _check_own_ways(model: Any) -> None:
    for name in OWN_WAYS:
        method = getattr(model, name)
        if getattr(method, "__self__", None) is not model or _home_of(method) not in REPRODUCED:
            raise NotInDaemon(f"it has a {name} of its own")


# --- what is to be done ---------------------------------------------------------------------------


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

    def over_steps(self, job: "Job", loop: Any = None) -> Any:
        """The same, or by that loop, where each forward is a step in djinnd. It makes its mask and
        positions there, so the loop need not go on with these."""
        left = ("attention_mask", "position_ids")
        kwargs = {name: one for name, one in self.kwargs.items() if name not in left}
        with _stepping(self.model, job):
            return replace(self, original=loop or self.original, kwargs=kwargs).in_python()


def _of_the_model(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without what is generate()'s own, which transformers hands through to forwards that have no
    use for it."""
    own = {"tokenizer", "assistant_tokenizer"} - set(
        inspect.signature(type(model).forward).parameters
    )
    return {name: one for name, one in kwargs.items() if name not in own}


@dataclass
class Job:
    """A call, as far as both lower tiers need it."""

    cache: DynamicCache
    prompt: int  # columns of the ids that it is given
    past: int  # tokens of each row that the cache holds
    tokens: int  # and that come behind them
    padding: list[int]
    programs: tuple[Captured, Captured]
    total: int  # token slots
    outlives: bool  # the cache is asked for again
    banks: int  # of the group: 2 if rows are to be reordered


# Whoever gives ids that are here gets the result here.
PLACES = (DEVICE, torch.device("cpu"))
IGNORED = {"attention_mask", "past_key_values", "use_cache", "logits_to_keep", "position_ids"}


def _check_arguments(model: Any, ids: torch.Tensor, config: Any, kwargs: dict[str, Any]) -> None:
    if ids.device not in PLACES:
        raise NotInDaemon(f"its ids are on {ids.device}, and would have to be on {DEVICE}")
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


def _most(criteria: Any, prompt: int) -> int:
    kind = stopping_criteria.MaxLengthCriteria
    lengths = [one.max_length for one in criteria if isinstance(one, kind)]
    if not lengths or min(lengths) <= prompt:
        raise NotInDaemon("it has no length to stop at")
    return min(lengths)


def job_of(call: Call, banks: int = 1) -> Job:
    model, ids, config, kwargs = call.model, call.ids, call.config, call.kwargs
    _check_arguments(model, ids, config, kwargs)
    rows, prompt = ids.shape
    if rows > ROWS_MAX:
        raise NotInDaemon(
            f"it is to go on with {rows} sequences at once, counting beams, and djinnd's loop "
            f"takes at most {ROWS_MAX}: give it fewer at once"
        )
    cache, mask = kwargs["past_key_values"], kwargs.get("attention_mask")
    past = _past(cache, model, rows)
    tokens = _tokens(mask, prompt, past)
    total = past + tokens + _most(call.criteria, prompt) - prompt
    most = _positions(model)
    if total > most:
        raise NotInDaemon(
            f"its prompt and new tokens may be {total}, and the model has positions, or a sliding "
            f"window, for {most}: lower max_new_tokens, or give it a shorter prompt"
        )
    padding = _padding(mask, rows, past + tokens)
    if any(one >= past + tokens for one in padding):
        raise NotInDaemon("a row is all padding")
    held = groups.held_of(cache)
    if held is not None and past and held.padding != padding:
        raise NotInDaemon("its rows are padded otherwise than in its cache")
    programs = _programs(model, Kind(rows, any(padding), past > 0, most), tokens)
    outlives = bool(config.return_dict_in_generate) or getattr(cache, "_is_user_defined", False)
    job = Job(cache, prompt, past, tokens, padding, programs, total, outlives, banks)
    if held is not None and past and not _fits(held, job):
        raise NotInDaemon("its cache has no room for so many tokens")
    return job


def _fits(held: Held, job: Job) -> bool:
    return (
        job.total <= held.capacity
        and job.banks <= held.banks
        and held.geometry == job.programs[1].geometry
    )


def _group_for(model: Any, job: Job) -> Held:
    """The one that the cache holds, or a new one. Slots take memory when they are filled, so a
    cache that outlives its generation has room for all that may follow."""
    held = groups.held_of(job.cache)
    if held is not None and job.past:
        return held
    geometry = job.programs[1].geometry
    capacity = _positions(model) if job.outlives else job.total
    try:
        group = _device.Group((*geometry, capacity, job.banks))
    except RuntimeError as error:
        raise NotInDaemon(f"no sequence group is to be had: {state.first_line(error)}") from error
    return Held(group, geometry, capacity, job.banks, weakref.ref(model), job.padding)


# --- one step at a time ---------------------------------------------------------------------------


def step(cache: GroupCache, input_ids: torch.Tensor) -> Any:
    """A forward of the model that the cache was made for, without its Python."""
    held = cache._held
    if held.tokens:  # of the prompt; the cache has those before
        input_ids, held.tokens = input_ids[:, -held.tokens :], 0
    tokens = input_ids.shape[1]
    program = held.loop[tokens == 1]
    padding = held.padding if held.length == 0 and held.is_padded else []
    logits = held.group.step(program.template, input_ids, padding)
    held.length += tokens
    return program.output(logits=logits, past_key_values=cache)


def is_step(cache: Any) -> bool:
    """Whether a forward with this cache is a step of the loop below."""
    held = groups.held_of(cache)
    return held is not None and held.loop is not None


@contextmanager
def _stepping(model: Any, job: Job) -> Iterator[None]:
    """Inside, forwards with the job's cache are steps."""
    if not all(program.template.steps for program in job.programs):
        raise NotInDaemon("its logits have other shapes at other sizes")
    held = _group_for(model, job)
    groups.hold(job.cache, held)
    held.loop, held.tokens, held.ids = job.programs, job.tokens, None
    try:
        yield
    finally:
        held.loop = None


# --- generating -----------------------------------------------------------------------------------


def sample(
    original: Any,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    **kwargs: Any,
) -> Any:
    """In place of `GenerationMixin._sample`, which `original` is: same arguments, same result."""
    given = (input_ids, logits_processor, stopping_criteria, generation_config)
    options = {"synced_gpus": synced_gpus, "streamer": streamer}
    return lower(Call(original, model, *given, options, kwargs), _sample)


def lower(call: Call, run: Callable[[Call], tuple[Any, int, str]], why_not: str = "") -> Any:
    """What run() gives for the call: a result, the tier that it took, and why not a higher one.
    Where it does not go in djinnd, operators are recorded, and that is told; why_not begins it."""
    call = replace(call, kwargs=_of_the_model(call.model, call.kwargs))
    try:
        result, tier, why = run(call)
    except NotInDaemon as reason:
        tier, why = 0, f"{why_not}{reason}"
        if not _is_gone(call.model):
            say_slow(why)
        result = call.in_python()
    state.took(state.known_of(call.model), tier, why)  # not what its last forward took
    return result


def _sample(call: Call) -> tuple[Any, int, str]:
    job = job_of(call)
    try:
        return _in_daemon(call, job), 2, ""
    except NotInDaemon as reason:
        why = str(reason)
    try:
        return call.over_steps(job), 1, why
    except NotInDaemon as reason:
        raise NotInDaemon(f"{why}; nor a step at a time, because {reason}") from reason


def _is_gone(model: Any) -> bool:
    """With the session that held its weights: no way is slow, each ends in an error."""
    first = next(iter(model.parameters()), None)
    return first is not None and first.device == DEVICE and _device.is_lost(first.detach())


def say_slow(why: str) -> None:
    notice.once(
        f"generate() of a ghost goes operator by operator, which may be slower than without djinn: "
        f"{why}. See docs/GHOSTS.md, Generation."
    )


# Streamers that computed on the device while a loop ran in djinnd, and so waited for its end.
_waited: "weakref.WeakSet[type]" = weakref.WeakSet()


def _check_streamer(streamer: Any) -> None:
    if type(streamer) in _waited:
        raise NotInDaemon(f"its streamer, a {type(streamer).__name__}, computes on the device")


def _check_draws(call: Call) -> None:
    if call.config.do_sample and call.ids.device != DEVICE:
        raise NotInDaemon("its ids are on the CPU, so tokens are drawn there, as without djinn")


def _check_rows(job: Job, rows: Rows) -> None:
    """djinnd goes on with a row that ended here, and its cache would hold that."""
    if job.outlives and rows.end_alone:
        raise NotInDaemon("a stop string ends one of several rows, and their cache is kept")


def _check_history(job: Job, input_ids: torch.Tensor, options: dict[str, Any]) -> None:
    """A penalty for repetition looks at all ids that it is given: djinnd has those that it saw."""
    if not job.past or "repetition_penalty" not in options:
        return
    held = groups.held_of(job.cache)
    seen = None if held is None else held.ids
    if seen is None or job.prompt == job.tokens:
        raise NotInDaemon("djinnd does not know all tokens whose repetition is penalised")
    if not torch.equal(seen, input_ids[:, : job.past].cpu()):
        raise NotInDaemon("its first ids are not those of its cache")


@dataclass
class Drawn:
    offset: int = 0  # the next one that the loop did not use


@contextmanager
def _drawing(options: dict[str, Any], rows: int) -> Iterator[Drawn]:
    """The loop's random numbers are set apart before it begins: a streamer that draws from the
    device's generator meanwhile gets those behind them, and is the last word on what comes next."""
    drawn = Drawn()
    if options["greedy"]:
        yield drawn
        return
    seed, first = _device.random_state()
    reserved = first + rows * options["max_new_tokens"]
    options["seed"], options["random_offset"] = seed, first
    _device.set_random_offset(reserved)
    drawn.offset = first  # nothing, where it fails
    try:
        yield drawn
    finally:
        if _device.random_state() == (seed, reserved):
            _device.set_random_offset(drawn.offset)


def _in_daemon(call: Call, job: Job) -> Any:
    streamer = call.options["streamer"]
    _check_streamer(streamer)
    _check_draws(call)
    options = _options(call, job)
    _check_history(job, call.ids, options)
    rows = Rows(call.ids.cpu(), call.criteria, options["pad_token"], streamer)
    _check_rows(job, rows)
    sequences = _generate(call.model, job, rows, options, streamer).to(call.ids.device)
    if call.config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences, past_key_values=job.cache)
    return sequences


def _generate(
    model: Any, job: Job, rows: Rows, options: dict[str, Any], streamer: Any
) -> torch.Tensor:
    """All ids, on the CPU."""
    held = _group_for(model, job)
    try:
        with _drawing(options, rows=len(rows.ids)) as drawn:
            tokens, drawn.offset, waited = held.group.generate(
                *(program.template for program in job.programs),
                rows.ids[:, -job.tokens :].to(torch.int32).flatten().tolist(),
                job.tokens,
                [0] * len(rows.ids) if job.past else job.padding,
                options,
                rows.append if rows.is_asked else None,
            )
            if rows.ended and not options["greedy"]:
                drawn.offset = options["random_offset"] + len(tokens[0]) * len(tokens)
    except BaseException:
        if job.past:
            held.crop(job.past)  # as if it had not begun
        raise
    ids = rows.extend(tokens)
    if waited:
        _waited.add(type(streamer))
    if streamer is not None:
        streamer.end()
    if job.outlives:
        length = job.past + job.tokens + len(tokens[0]) - 1  # the last one was not run yet
        if rows.ended:
            held.crop(length)
        held.length = length
        held.ids = ids[:, :length] if ids.shape[1] == length + 1 else None
        groups.hold(job.cache, held)
    return ids


__all__ = ["Call", "is_step", "job_of", "lower", "sample", "say_slow", "step"]
