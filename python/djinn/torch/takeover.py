# SPDX-License-Identifier: Apache-2.0
"""A generation that djinnd takes over after its prompt.

The prompt is computed by the model's own Python, as any forward: with images or sound, behind an
encoder, or by code that is no one program. What it leaves is where djinnd's loop begins:

    keys and values      go to a sequence group
    cross attention      its keys and values are constants of every token's program
    recurrent states     are written in place by every token's program
    logits               the first token is drawn from them

later.py tells what the model is given at the tokens after it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.generation import logits_process

from . import _device, state
from .cache import GrowingLayer
from .capture import (
    KEPT_ELSEWHERE,
    Captured,
    Programs,
    Size,
    Stretch,
    copied,
    dims_of,
    geometry_of,
    moved,
    note_attention,
    recorded_at,
    remember_refusal,
    remembered,
    slots_of,
    stretch_of,
    united,
)
from .job import (
    OWN_WAYS,
    Call,
    Job,
    check_rows,
    is_of_transformers,
    most_of,
    positions_of,
    too_many,
    window_of,
)
from .later import (
    Beside,
    ForThisCall,
    Inputs,
    Roles,
    cache_name,
    example_of,
    has_states,
    inputs_of,
    keeps_tokens,
    layer_like,
    own_layers,
    show_own_mask,
)
from .replay import PLAIN
from .state import DEVICE, NotInDaemon
from .stopping import ASKED, check_ends

# Of a generation whose layers keep no tokens: it has a group for the tokens themselves.
NO_LAYERS = (1, 1, 1, torch.float32)
SLOTS_LEAST = 64  # programs are captured at less
STATES = ("conv_states", "recurrent_states")


# --- the cache ------------------------------------------------------------------------------------


def _take_states(inputs: Inputs, layer: Any) -> Callable[[Any, list[torch.Tensor]], None]:
    """Its states become tensors that each token's program writes. The result gives a layer for a
    capture those that it is given there."""
    numbers: list[tuple[str, int, int]] = []
    for name in STATES if has_states(layer) else ():
        held = getattr(layer, name)
        for index, tensor in held.items():
            if tensor is not None:
                held[index] = copied(tensor)
                numbers.append((name, index, inputs.add(Beside(held[index], is_written=True))))

    def give(other: Any, tensors: list[torch.Tensor]) -> None:
        for name in STATES if has_states(layer) else ():
            setattr(other, name, dict(getattr(layer, name)))
        for name, index, number in numbers:
            getattr(other, name)[index] = tensors[number]

    return give


def _take_cross(inputs: Inputs, cache: Any) -> Callable[[list[torch.Tensor]], Any]:
    """Keys and values of cross attention, as constants."""
    numbers = []
    for layer in cache.layers:
        if type(layer) not in (DynamicLayer, GrowingLayer) or layer.keys is None:
            raise NotInDaemon(f"its cache has a {type(layer).__name__} for cross attention")
        pair = (copied(layer.keys), copied(layer.values))
        numbers.append([inputs.add(Beside(one, source=2)) for one in pair])

    def make(tensors: list[torch.Tensor]) -> Any:
        other = DynamicCache()
        for keys, values in numbers:
            held = DynamicLayer()
            held.keys, held.values = tensors[keys], tensors[values]
            held.dtype, held.device, held.is_initialized = held.keys.dtype, DEVICE, True
            other.layers.append(held)
        return other

    return make


@dataclass
class Layers:
    """Those of a cache that keep tokens, and what makes a cache of the same kind for a capture."""

    windows: list[int]
    make: Callable[[Size, list[torch.Tensor]], tuple[Any, list[Any]]]  # and its group's layers


def _take_cache(inputs: Inputs, cache: Cache) -> Layers:
    own = own_layers(cache)
    windows = [getattr(one, "sliding_window", 0) for one in own if keeps_tokens(one)]
    states = [_take_states(inputs, one) for one in own]
    cross = None
    if isinstance(cache, EncoderDecoderCache):
        cross = _take_cross(inputs, cache.cross_attention_cache)
    inputs.keys.append((type(cache).__name__, tuple(windows), tuple(type(one) for one in own)))

    def make(size: Size, tensors: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        kept: list[Any] = []
        layers = []
        for original, give in zip(own, states, strict=True):
            layers.append(layer_like(original, len(kept), size.past, size.capacity))
            give(layers[-1], tensors)
            if keeps_tokens(original):
                kept.append(layers[-1])
        made: Any = Cache(layers=layers)
        return (made if cross is None else EncoderDecoderCache(made, cross(tensors))), kept

    return Layers(windows, make)


# --- programs -------------------------------------------------------------------------------------


def _sizes(inputs: Inputs, window: int) -> list[Size]:
    points = ((5, 29), (6, 29), (5, 31), (11, 41))
    sizes = [Size(1, past, capacity, 17) for past, capacity in points]
    if inputs.source:
        sizes += [Size(1, 5, 29, 19), Size(1, 11, 41, 23)]
    if window:
        return [moved(one, max(inputs.least, window), window) for one in sizes]
    more = inputs.least
    return [replace(one, past=one.past + more, capacity=one.capacity + more) for one in sizes]


def _capture_decode(
    call: Call, inputs: Inputs, layers: Layers, name: str, roles: Any, window: int, most: int
) -> Captured:
    """window: 0, or that of a cache that has outgrown it. most: tokens of a row."""

    def capture(size: Size) -> tuple[Any, Any]:
        roles.clear()
        tensors = [
            _device.capture_beside(
                number,
                one.is_written,
                one.tensor.dtype,
                one.sizes_at(size),
                example_of(size, one) if one.known else None,
            )
            for number, one in enumerate(inputs.beside)
        ]
        cache, kept = layers.make(size, tensors)
        note_attention(call.model, kept)
        given = {key: make(size, tensors) for key, make in inputs.makers} | {name: cache}
        output = call.model(**given, return_dict=True)
        logits, kind = output.logits, type(output)
        geometry = geometry_of(kept) if kept else (inputs.rows, *NO_LAYERS)
        dims = kept[0].dims if kept else (0, 0)
        roles.clear()
        del cache, kept, given, output
        # What is written to a state counts while somebody holds it, and `tensors` does.
        return _device.capture_finish([logits], True), (geometry, kind, dims)

    sizes = _sizes(inputs, window)
    try:
        recorded = [recorded_at(call.model, partial(capture, size)) for size in sizes]
    except NotInDaemon:
        if not show_own_mask(call.model, inputs):
            raise
        recorded = [recorded_at(call.model, partial(capture, size)) for size in sizes]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    least = max(inputs.least, window - 1 if window else 0)
    slots = max(positions_of(call.model), SLOTS_LEAST + max(least, inputs.least + window))
    symbols = [("tokens", 1, 1), ("past", least, most - 1), ("capacity", least + 1, slots)]
    if inputs.source:
        points = [[*point, size.source] for point, size in zip(points, sizes, strict=True)]
        symbols.append(("source", 1, inputs.source_most()))
    return Captured(united([one for one, _ in recorded], points, symbols), *recorded[-1][1])


def _capture_adoption(
    model: Any,
    rows: int,
    windows: tuple[int, ...],
    logits: Any,
    keys: Any,
    is_wide: bool,
    most: int,
) -> Captured:
    """The step of the prompt: its keys and values are appended as they were computed, and what the
    first token is drawn from is given. keys: heads, dims, dtype. is_wide: it outgrows the
    windows."""
    window = max(windows, default=0)

    def capture(size: Size) -> tuple[Any, Any]:
        given = _device.capture_beside(0, False, logits[1], [rows, logits[0]], None)
        buffers = []  # held to the end, for what is written to them counts as long
        for layer, one in enumerate(windows):
            heads, dims, dtype = keys
            slots = slots_of(layer, (rows, heads, max(dims), dtype), size.capacity, dims)
            begin = max(0, size.tokens - one + 1) if one else 0
            for part in (0, 1):
                sizes = [rows, heads, size.tokens - begin, dims[part]]
                number = 1 + 2 * layer + part
                fresh = _device.capture_beside(number, False, dtype, sizes, None)
                torch.ops.djinn.kv_append(slots[part], fresh, begin)
            buffers.append(slots)
        return _device.capture_finish([given.clone()], True), None

    more = window if is_wide else 0
    sizes = [Size(7 + more, 0, 29 + more), Size(8 + more, 0, 29 + more)]
    sizes += [Size(7 + more, 0, 31 + more), Size(13 + more, 0, 41 + more)]
    if window and not is_wide and window <= 13:
        raise NotInDaemon(f"its sliding window has {window} tokens, too few to tell anything")
    recorded = [recorded_at(model, partial(capture, size)) for size in sizes]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    least, last = 1, most
    if window:
        least, last = (window, most) if is_wide else (1, window - 1)
    symbols = [("tokens", least, last), ("past", 0, 0), ("capacity", least, most)]
    template = united([one for one, _ in recorded], points, symbols)
    geometry = (rows, *NO_LAYERS)
    if keys:
        geometry = (rows, len(windows), keys[0], max(keys[1]), keys[2])
    return Captured(template, geometry, type(None))


# --- a generation ---------------------------------------------------------------------------------


@dataclass
class Taken:
    """What djinnd goes on from."""

    job: Job
    at_prompt: list[torch.Tensor]
    at_token: list[torch.Tensor]
    symbols: list[int]
    layers: list[Any]  # of the cache, those that keep tokens
    undo: Callable[[], None] = lambda: None  # the call's cache and modules become what they were


def _check(call: Call) -> None:
    config = call.config
    if call.model.training:
        raise NotInDaemon("it is in training mode: call model.eval() first")
    for name in OWN_WAYS:  # a program's code may look at more than is seen of it
        if not is_of_transformers(call.model, name):
            raise NotInDaemon(f"it has a {name} of its own")
    goes_on = "_has_unfinished_sequences"  # which djinnd does not call
    if not is_of_transformers(call.model, goes_on, "transformers.generation."):
        raise NotInDaemon(f"it has a {goes_on} of its own")
    _check_arguments(call.kwargs)
    check_rows(len(call.ids))
    check_ends(call.criteria, len(call.ids), _outlives(call))
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise NotInDaemon(f"{name} is asked for")
    if config.prefill_chunk_size is not None or config.is_assistant:
        raise NotInDaemon("prefill in chunks, and assistants, take Python's loop")
    own = own_layers(call.kwargs[cache_name(call.kwargs)])
    if any(getattr(one, "keys", None) is not None for one in own) or any(
        any(one.has_previous_state.values()) for one in own if has_states(one)
    ):
        raise NotInDaemon("its cache holds tokens before the prompt")
    if (
        _outlives(call)
        and any(type(one) in ASKED for one in call.criteria)
        and any(has_states(one) for one in own)
    ):
        raise NotInDaemon("its states cannot go back to a token that is found to be the last one")
    prompt = call.ids.shape[1]
    total, most = most_of(call.criteria, prompt), positions_of(call.model)
    if total > most:
        raise NotInDaemon(too_many(total, most))


def _check_arguments(kwargs: dict[str, Any]) -> None:
    """What the model's Python makes of anything else, as of a generator that it takes from, cannot
    be undone."""
    for name, tree in kwargs.items():
        for one in pytree.tree_leaves(tree, is_leaf=lambda part: isinstance(part, Cache)):
            if not isinstance(one, (torch.Tensor, Cache, *PLAIN)):
                raise NotInDaemon(f"its {name} holds a {type(one).__name__}")


def _outlives(call: Call) -> bool:
    cache = call.kwargs[cache_name(call.kwargs)]
    is_users = getattr(cache, "_is_user_defined", False)
    return bool(call.config.return_dict_in_generate) or bool(is_users)


def _kind(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What is given, and which masks hide nothing."""

    def of(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return type(one)
        is_mask = one.dim() == 2 and not one.is_floating_point()
        return (one.dim(), is_mask and bool((one.cpu() == 1).all()))

    names = sorted(name for name, one in kwargs.items() if one is not None)
    return tuple((name, of(kwargs[name])) for name in names)


def _lengths(call: Call) -> tuple[Any, ...]:
    """What refusals may depend on beside what is given."""
    window, prompt = window_of(call.model), call.ids.shape[1]
    last = most_of(call.criteria, prompt) - 2
    cache = call.kwargs[cache_name(call.kwargs)]
    is_users = bool(getattr(cache, "_is_user_defined", False))
    return (stretch_of(window, prompt, 1), stretch_of(window, last, 1), is_users)


def take_over(call: Call) -> Taken:
    """Computes the prompt here, and gives what djinnd's loop goes on from. Where that cannot be,
    the call's cache and the model's modules are as they were; why is remembered, for the prompt was
    computed for nothing."""
    _check(call)
    model = call.model
    known = state.known_of(model)
    state.refresh(model, known)
    key = ("taken over", len(call.ids), _kind(call.kwargs), _lengths(call), state.context())
    if key in known.captured:
        raise NotInDaemon(known.captured[key])
    cache = call.kwargs[cache_name(call.kwargs)]
    before = copy.deepcopy(cache.__dict__)
    restore = state.attributes_of(model)

    def undo() -> None:
        cache.__dict__.clear()
        cache.__dict__.update(before)
        restore()

    try:
        return replace(_taken(call, cache), undo=undo)
    except BaseException as error:
        undo()
        if isinstance(error, NotInDaemon) and not isinstance(error, ForThisCall):
            state.refresh(model, known)
            remember_refusal(known, key, str(error))
        raise


def _taken(call: Call, cache: Cache) -> Taken:
    model = call.model
    with torch.no_grad():
        output = model._prefill(call.ids, call.config, dict(call.kwargs), is_first_iteration=True)
        state.refresh(model, state.known_of(model))  # programs are of what it left in the modules
        kwargs = model._update_model_kwargs_for_generation(
            output, dict(call.kwargs), is_encoder_decoder=model.config.is_encoder_decoder
        )
        if kwargs[cache_name(kwargs)] is not cache:  # one for cross attention, too
            if getattr(cache, "_is_user_defined", False):
                raise NotInDaemon("its forward gives another cache than the caller's")
            cache = kwargs[cache_name(kwargs)]
        logits = copied(output.logits[:, -1])
        layers = [one for one in own_layers(cache) if keeps_tokens(one)]
        if any(one.keys is None for one in layers):
            raise NotInDaemon(KEPT_ELSEWHERE)
        past = layers[0].get_seq_length() if layers else call.ids.shape[1]
        roles = Roles(len(call.ids))
        inputs, name = inputs_of(call, kwargs, past, roles)
        parts = _take_cache(inputs, cache)
        decode = partial(_capture_decode, call, inputs, parts, name, roles=roles)
        found = _programs(call, inputs, parts, decode, (logits, layers))
        kept = [copied(one) for layer in layers for one in (layer.keys, layer.values)]
    total = past + most_of(call.criteria, call.ids.shape[1]) - call.ids.shape[1]
    given = (cache, call.ids.shape[1], 0, past, inputs.padding)
    return Taken(
        Job(*given, found, total, _outlives(call), banks=1),
        at_prompt=[logits, *kept],
        at_token=[one.tensor for one in inputs.beside],
        symbols=[inputs.source] if inputs.source else [],
        layers=layers,
    )


def _check_lengths(call: Call, past: int) -> int:
    """The most tokens of a row."""
    prompt = call.ids.shape[1]
    total = past + most_of(call.criteria, prompt) - prompt
    most = positions_of(call.model)
    if past < prompt:
        raise NotInDaemon("its cache has fewer tokens than its prompt")
    if total > most:
        raise ForThisCall(too_many(total, most))
    penalty = logits_process.RepetitionPenaltyLogitsProcessor
    if past > prompt and any(type(one) is penalty for one in call.processors):
        raise ForThisCall("djinnd does not know all tokens whose repetition is penalised")
    return total


def _programs(
    call: Call, inputs: Inputs, parts: Layers, decode: Any, made: tuple[torch.Tensor, list[Any]]
) -> Programs:
    """made: logits, and the layers that keep tokens."""
    first, total = inputs.past, _check_lengths(call, inputs.past)
    most, window = positions_of(call.model), window_of(call.model)
    if any(one not in (0, window) for one in parts.windows):
        raise NotInDaemon("its cache has other sliding windows than its configuration")

    def at(past: int) -> Captured:
        is_beyond = stretch_of(window, past, 1) is Stretch.BEYOND
        limit = most if is_beyond or not window else window - 1
        key = ("decode", inputs.key(), most, is_beyond)
        make = partial(decode, window=window if is_beyond else 0, most=limit)
        return remembered(call.model, key, make)

    found = Programs(_adoption(call.model, inputs, parts.windows, *made), at(first))
    if first < window - 1 <= total - 2:
        found.late, found.late_from = at(total - 2), window - 1
    if made[1] and found.decode.geometry != found.prefill.geometry:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    return found


def _adoption(
    model: Any, inputs: Inputs, windows: list[int], logits: torch.Tensor, layers: list[Any]
) -> Captured:
    shapes = {(one.keys.shape[1], dims_of(one.keys, one.values), one.keys.dtype) for one in layers}
    if len(shapes) > 1:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    keys = next(iter(shapes), None)
    window = max(windows, default=0)
    of_logits = (logits.shape[1], logits.dtype)
    most = max(positions_of(model), SLOTS_LEAST + window)
    what = (inputs.rows, tuple(windows), of_logits, keys, 0 < window <= inputs.past, most)
    return remembered(model, ("adoption", what), partial(_capture_adoption, model, *what))


def give_back(taken: Taken, held: Any) -> None:
    """The cache gets all tokens that the group has."""
    copies = held.contents() if taken.layers else []
    for layer, (keys, values) in zip(taken.layers, copies, strict=True):
        begin = 0
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = held.length
            begin = max(0, held.length - layer.sliding_window + 1)
        layer.keys, layer.values = keys[:, :, begin:], values[:, :, begin:]


__all__ = ["Taken", "give_back", "take_over"]
