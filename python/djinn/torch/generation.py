"""`generate()` in the daemon: the loop over tokens runs there, without Python.

A model's forward is captured at a few sizes on inputs without values, and its recordings become two
programs, prefill and decode, whose keys and values live in a sequence group. Options that the loop
does not know leave it to transformers' own, whose forwards then run those programs a step at a
time; what cannot be captured takes recorded operators. `explain()` says which, and why.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation import logits_process, stopping_criteria

from . import _device, state
from .state import NotInDaemon

DEVICE = torch.device("remote_accelerator", 0)
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
    del cache, kwargs, ids, output
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


def _capture(model: Any, rows: int, masked: bool, prefill: bool, most: int) -> Captured:
    sizes = _sizes(prefill, masked)
    recordings, kind = [], None
    for size in sizes:
        try:
            with state.capturing(), torch.no_grad():
                recording, kind = _capture_at(model, rows, masked, size)
        except NotInDaemon:
            raise
        except Exception as error:
            raise NotInDaemon(
                f"its forward cannot be captured: {state.first_line(error)}"
            ) from error
        recordings.append(recording)
    symbols = [("tokens", 2, most), ("past", 0, most - 2 if masked else 0), ("capacity", 2, most)]
    if not prefill:
        symbols = [("tokens", 1, 1), ("past", 0, most - 1), ("capacity", 2, most)]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    try:
        template = _device.make_template(recordings, points, symbols)
    except Exception as error:
        raise NotInDaemon(
            f"its recordings are no one program: {state.first_line(error)}"
        ) from error
    return Captured(template, *kind)


def _programs(model: Any, rows: int, masked: bool, tokens: int, most: int) -> list[Captured]:
    known = state.known_of(model)
    state.refresh(model, known)
    wanted = [tokens > 1, False]
    programs = []
    for prefill in wanted:
        key = (rows, masked, prefill, most)
        if key not in known.captured:
            try:
                known.captured[key] = _capture(model, rows, masked, prefill, most)
            except NotInDaemon as reason:
                known.captured[key] = reason
        found = known.captured[key]
        if isinstance(found, NotInDaemon):
            raise found
        programs.append(found)
    return programs


# --- options --------------------------------------------------------------------------------------


def _options(processors: Any, criteria: Any, config: Any, prompt: int) -> dict[str, Any]:
    options: dict[str, Any] = {"greedy": not config.do_sample}
    eos: list[int] = []
    most = None
    for criterion in criteria:
        if type(criterion) is stopping_criteria.MaxLengthCriteria:
            most = criterion.max_length
        elif type(criterion) is stopping_criteria.EosTokenCriteria:
            eos = criterion.eos_token_id.flatten().tolist()
        else:
            raise NotInDaemon(f"the stopping criterion {type(criterion).__name__} is Python")
    if most is None or most <= prompt:
        raise NotInDaemon("it has no length to stop at")
    if len(eos) > STOP_TOKENS_MAX:
        raise NotInDaemon(f"it has {len(eos)} end tokens; the loop knows {STOP_TOKENS_MAX}")
    options["max_new_tokens"] = most - prompt
    options["stop_tokens"] = eos
    for processor in processors:
        _add_processor(options, processor, prompt)
    return options


def _add_processor(options: dict[str, Any], processor: Any, prompt: int) -> None:
    kind = type(processor)
    if kind is logits_process.TemperatureLogitsWarper:
        options["temperature"] = float(processor.temperature)
    elif kind is logits_process.TopKLogitsWarper:
        options["top_k"] = int(processor.top_k)
    elif kind is logits_process.TopPLogitsWarper and processor.min_tokens_to_keep == 1:
        options["top_p"] = float(processor.top_p)
    elif kind is logits_process.MinPLogitsWarper and processor.min_tokens_to_keep == 1:
        options["min_p"] = float(processor.min_p)
    elif kind is logits_process.RepetitionPenaltyLogitsProcessor and not (
        processor.prompt_ignore_length
    ):
        options["repetition_penalty"] = float(processor.penalty)
    elif kind is logits_process.MinNewTokensLengthLogitsProcessor:
        least = processor.min_new_tokens - (prompt - processor.prompt_length_to_skip)
        options["min_new_tokens"] = max(options.get("min_new_tokens", 0), least)
    elif kind is logits_process.MinLengthLogitsProcessor:
        least = max(processor.min_length - prompt, 0)
        options["min_new_tokens"] = max(options.get("min_new_tokens", 0), least)
    else:
        raise NotInDaemon(f"the logits processor {kind.__name__} is Python")


def _positions(config: Any) -> int:
    """How many tokens a row may have in all."""
    text = config.get_text_config(decoder=True)
    most = getattr(text, "max_position_embeddings", None) or POSITIONS_DEFAULT
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and window > 0 and getattr(text, "use_sliding_window", True):
            most = min(most, window)
    return most


def _padding(mask: torch.Tensor | None, rows: int, prompt: int) -> list[int]:
    """Left padding of each row."""
    if mask is None:
        return [0] * rows
    if mask.dim() != 2 or mask.shape[1] != prompt:
        raise NotInDaemon("its attention mask is not one of the prompt's tokens")
    known = mask.cpu().bool()
    padding = (~known).sum(dim=1)
    expected = torch.arange(prompt)[None, :] >= padding[:, None]
    if not torch.equal(known, expected):
        raise NotInDaemon("rows are padded elsewhere than on their left")
    return padding.tolist()


IGNORED = {"attention_mask", "past_key_values", "use_cache", "logits_to_keep", "position_ids"}


def _check_arguments(model: Any, config: Any, kwargs: dict[str, Any]) -> None:
    if model.config.is_encoder_decoder:
        raise NotInDaemon("it is an encoder-decoder")
    if model.training:
        raise NotInDaemon("it is in training mode")
    for name in ("output_attentions", "output_hidden_states", "output_scores", "output_logits"):
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
    if type(cache).__name__ != "DynamicCache":
        raise NotInDaemon(f"its cache is a {type(cache).__name__}")
    if cache.get_seq_length() != 0 or config.return_dict_in_generate:
        raise NotInDaemon("the cache outlives this generation")


# --- one step at a time ---------------------------------------------------------------------------


class GroupCache(Cache):
    """A cache whose keys and values are a sequence group of djinnd, for transformers' own loop."""

    def __init__(self, prefill: Captured, decode: Captured, capacity: int) -> None:
        super().__init__(layers=[])
        self.prefill, self.decode = prefill, decode
        self.group = _device.Group((*decode.geometry, capacity))
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length


def step(cache: GroupCache, input_ids: torch.Tensor) -> Any:
    """A forward of the model that the cache was made for, without its Python."""
    program = cache.prefill if input_ids.shape[1] > 1 else cache.decode
    logits = cache.group.step(program.template, input_ids)
    cache.length += input_ids.shape[1]
    return program.output(logits=logits, past_key_values=cache)


def _group_cache(
    model: Any, input_ids: torch.Tensor, criteria: Any, config: Any, kwargs: Any
) -> Any:
    _check_arguments(model, config, kwargs)
    rows, prompt = input_ids.shape
    lengths = [one.max_length for one in criteria if hasattr(one, "max_length")]
    if not lengths or min(lengths) > _positions(model.config) or rows > ROWS_MAX:
        raise NotInDaemon("its length has no bound that a sequence group could have")
    if any(_padding(kwargs.get("attention_mask"), rows, prompt)):
        raise NotInDaemon("its rows are padded")
    programs = _programs(model, rows, False, prompt, _positions(model.config))
    if not all(program.template.steps for program in programs):
        raise NotInDaemon("its logits have other shapes at other sizes")
    return GroupCache(*programs, min(lengths))


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
    known = state.known_of(model)
    try:
        run = _prepare(
            model, input_ids, logits_processor, stopping_criteria, generation_config, kwargs
        )
    except NotInDaemon as reason:
        tier, why = 0, str(reason)
        try:
            cache = _group_cache(model, input_ids, stopping_criteria, generation_config, kwargs)
            kwargs["past_key_values"], tier = cache, 1
        except NotInDaemon as also:
            why += "" if why == str(also) else f"; nor a step at a time, because {also}"
        result = original(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            synced_gpus=synced_gpus,
            streamer=streamer,
            **kwargs,
        )
        known.tier, known.why = tier, why  # not what its last forward took
        return result
    known.tier, known.why = 2, ""
    return run(streamer)


def _prepare(
    model: Any, input_ids: torch.Tensor, processors: Any, criteria: Any, config: Any, kwargs: Any
) -> Any:
    _check_arguments(model, config, kwargs)
    rows, prompt = input_ids.shape
    if rows > ROWS_MAX:
        raise NotInDaemon(f"it has {rows} rows; a sequence group holds {ROWS_MAX}")
    options = _options(processors, criteria, config, prompt)
    total = prompt + options["max_new_tokens"]
    most = _positions(model.config)
    if total > most:
        raise NotInDaemon(f"{total} tokens are more than the {most} that one attention covers")
    padding = _padding(kwargs.get("attention_mask"), rows, prompt)
    prefill, decode = _programs(model, rows, any(padding), prompt, most)
    pad = config._pad_token_tensor
    options["pad_token"] = int(pad.item()) if pad is not None else 0
    if not options["greedy"]:
        options["seed"], options["random_offset"] = _device.random_state()
    ids = input_ids.cpu().to(torch.int32)

    def run(streamer: Any) -> Any:
        on_step = None
        if streamer is not None:

            def on_step(tokens: list[int]) -> None:
                streamer.put(torch.tensor(tokens))

        tokens, offset = _device.generate(
            prefill.template,
            decode.template,
            (*decode.geometry, total),
            ids.flatten().tolist(),
            prompt,
            padding,
            options,
            on_step,
        )
        if not options["greedy"]:
            _device.set_random_offset(offset)
        if streamer is not None:
            streamer.end()
        drawn = torch.tensor(tokens, dtype=input_ids.dtype)
        return torch.cat([ids.to(input_ids.dtype), drawn], dim=1).to(DEVICE)

    return run


__all__ = ["sample"]
