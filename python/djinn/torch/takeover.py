# SPDX-License-Identifier: Apache-2.0
"""A generation that djinnd takes over after its prompt.

The prompt is computed by the model's own Python, as any forward: with images or sound, by an
encoder before it, or by code that is no one program. What it leaves is where djinnd's loop begins:

    keys and values      go to a sequence group
    cross attention      its keys and values are constants of every token's program
    recurrent states     are written in place by every token's program
    logits               the first token is drawn from them

What the model is given at a later token is seen, not known: its own Python is asked for the inputs
of the next two, and what is the same in both is taken for a constant, a mask that grew by a one for
a mask, and what grew by one for positions.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
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
    LinearAttentionLayer,
)

from . import _device, state
from .cache import GrowingLayer
from .capture import (
    Captured,
    Programs,
    Size,
    Stretch,
    copied,
    dims_of,
    geometry_of,
    group_layer,
    note_attention,
    recorded_at,
    remembered,
    slots_of,
    stretch_of,
    united,
)
from .job import ROWS_MAX, Call, Job, most_of, positions_of, too_many, window_of
from .replay import PLAIN
from .state import DEVICE, NotInDaemon

SOURCE_LEAST = 64
TOKENS_MOST = 1 << 20
# Of a generation whose layers keep no tokens: it has a group for the tokens themselves.
NO_LAYERS = (1, 1, 1, torch.float32)


# --- what tokens after the prompt are given -------------------------------------------------------


@dataclass
class Beside:
    """A tensor that a token's program is given beside the group."""

    tensor: torch.Tensor
    is_written: bool = False
    source: int | None = None  # the dimension that cross attention's keys have
    known: bool = False  # code may look at its values, and sees zeros among ones

    def sizes_at(self, size: Size) -> list[int]:
        sizes = list(self.tensor.shape)
        if self.source is not None:
            sizes[self.source] = size.source
        return sizes

    def kind(self) -> Any:
        sizes = [None if d == self.source else one for d, one in enumerate(self.tensor.shape)]
        return (tuple(sizes), self.tensor.dtype, self.is_written, self.known)


@dataclass
class Inputs:
    """What a forward at a later token is given, apart: `make` puts it together of what a capture,
    or a run, has in its place."""

    rows: int
    past: int  # tokens in the cache
    padding: list[int]
    source: int  # length of what cross attention looks at; 0: there is none
    beside: list[Beside] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)  # what programs depend on, beside their tensors
    # (the argument's name, what makes it: of a size, and of the tensors in the place of beside's)
    makers: list[tuple[str, Callable[[Size, list[torch.Tensor]], Any]]] = field(
        default_factory=list
    )
    least: int = 0  # tokens before the first step

    def add(self, one: Beside) -> int:
        self.beside.append(one)
        return len(self.beside) - 1

    def key(self) -> Any:
        return (
            *(self.rows, any(self.padding), self.least, self.source_most()),
            *(tuple(self.keys), tuple(one.kind() for one in self.beside)),
        )

    def source_most(self) -> int:
        """The most that programs are admitted for."""
        most = SOURCE_LEAST
        while most < self.source:
            most *= 2
        return most if self.source else 0


@dataclass
class Seen:
    """A part of what is given: at the next token, and at the one after it."""

    first: Any
    second: Any


def _cache_name(kwargs: dict[str, Any]) -> str:
    names = [name for name, one in kwargs.items() if isinstance(one, Cache)]
    if len(names) != 1 or not kwargs.get("use_cache"):
        raise NotInDaemon("it is to generate without a cache")
    return names[0]


def _like(cache: Cache, layer: Callable[[Any, int], Any]) -> Cache:
    """A cache of the same kind, with layer(original, number) for each layer of its tokens."""
    if isinstance(cache, EncoderDecoderCache):
        other = copy.copy(cache)
        other.self_attention_cache = _like(cache.self_attention_cache, layer)
        return other
    other = copy.copy(cache)
    other.__dict__["layers"] = [layer(one, i) for i, one in enumerate(cache.layers)]
    return other


def _own_layers(cache: Cache) -> list[Any]:
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if type(own) is not DynamicCache:
        raise NotInDaemon(f"its cache is a {type(own).__name__}")
    return own.layers


def _is_of_tokens(layer: Any) -> bool:
    if type(layer) in (DynamicLayer, GrowingLayer, DynamicSlidingWindowLayer):
        return True
    if type(layer) is LinearAttentionLayer:
        return False
    raise NotInDaemon(f"its cache has a {type(layer).__name__}")


class _Longer:
    """A layer that says it has so many tokens, and nothing else."""

    def __new__(cls, original: Any, past: int) -> Any:
        if not _is_of_tokens(original):
            return original
        return group_layer(0, past, past, getattr(original, "sliding_window", 0))


def _asked(call: Call, ids: torch.Tensor, kwargs: dict[str, Any], past: int) -> list[dict]:
    """What the model's Python makes for the next two tokens."""
    asked = []
    name = _cache_name(kwargs)
    for more in (1, 2):
        ids = torch.cat([ids, ids[:, -1:]], dim=1)
        longer = _like(kwargs[name], lambda one, _, more=more: _Longer(one, past + more - 1))
        given = {**kwargs, name: longer}
        found = call.model.prepare_inputs_for_generation(ids, next_sequence_length=1, **given)
        asked.append({key: one for key, one in found.items() if one is not longer})
        asked[-1]["of the cache"] = next(key for key, one in found.items() if one is longer)
        kwargs = call.model._update_model_kwargs_for_generation(
            {}, dict(kwargs), is_encoder_decoder=call.model.config.is_encoder_decoder
        )
    return asked


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())


def _grows(seen: Seen) -> bool:
    """Whether it is a mask of tokens, to which one that counts was added."""
    a, b = seen.first, seen.second
    if a.dim() != 2 or b.dim() != 2 or b.shape[1] != a.shape[1] + 1 or a.is_floating_point():
        return False
    return _is_equal(b[:, :-1], a) and bool((b[:, -1] == 1).all())


def _counts(seen: Seen) -> bool:
    a, b = seen.first, seen.second
    is_whole = a.dtype in (torch.int64, torch.int32)
    return is_whole and a.shape == b.shape and a.shape[-1] == 1 and _is_equal(a + 1, b)


def _take_mask(inputs: Inputs, name: str, mask: torch.Tensor) -> None:
    known = mask.cpu().bool()
    rows, columns = known.shape
    apart = inputs.past + 1 - columns  # tokens that the mask has no column for
    inputs.least = max(inputs.least, apart)
    if known.all():
        inputs.keys.append((name, "ones", mask.dtype, apart))
        ones = partial(torch.ones, dtype=mask.dtype, device=DEVICE)
        inputs.makers.append((name, lambda size, _: ones(rows, size.past + 1 - apart)))
        return
    padding = (~known).sum(dim=1)
    is_left = torch.equal(known, torch.arange(columns)[None, :] >= padding[:, None])
    if apart < 0 or not is_left or inputs.padding not in ([0] * rows, padding.tolist()):
        raise NotInDaemon("rows are padded elsewhere than on their left")
    inputs.padding = padding.tolist()
    inputs.keys.append((name, "padded", mask.dtype, apart))

    def make(size: Size, _: Any) -> torch.Tensor:
        looks = torch.ones(rows, 1, 1, size.past + 1, dtype=torch.bool)
        looks[0, :, :, 0] = False
        role = _device.capture_input("attention_mask", torch.bool, list(looks.shape), looks)
        return role[:, 0, 0, : size.past + 1 - apart].to(mask.dtype)

    inputs.makers.append((name, make))


def _take_positions(inputs: Inputs, name: str, positions: torch.Tensor, roles: Any) -> None:
    """Those of the group's rows, with what is between them and these."""
    of_group = inputs.past - torch.tensor(inputs.padding)[:, None]
    apart = positions.cpu() - of_group
    inputs.keys.append((name, "positions", positions.dtype, tuple(positions.shape)))
    if not apart.any() and positions.dim() == 2:
        inputs.makers.append((name, lambda size, _: roles(size)["positions"].to(positions.dtype)))
        return
    number = inputs.add(Beside(apart.to(DEVICE)))

    def make(size: Size, tensors: list[torch.Tensor]) -> torch.Tensor:
        return (roles(size)["positions"] + tensors[number]).to(positions.dtype)

    inputs.makers.append((name, make))


def _take_constant(inputs: Inputs, name: str, tree: Any, other: Any) -> None:
    """All of an argument that is the same at both tokens."""
    leaves, spec = pytree.tree_flatten(tree)
    others, _ = pytree.tree_flatten(other)
    if len(leaves) != len(others):
        raise NotInDaemon(f"{name} is another with each token")
    makers: list[Any] = []
    for a, b in zip(leaves, others, strict=True):
        if isinstance(a, torch.Tensor):
            if not isinstance(b, torch.Tensor) or not _is_equal(a, b):
                raise NotInDaemon(f"{name} is another with each token")
            makers.append(_constant(inputs, a))
        elif isinstance(a, PLAIN) and a == b:
            inputs.keys.append((name, a))
            makers.append(lambda size, tensors, a=a: a)
        else:
            raise NotInDaemon(f"it is given a {type(a).__name__}")
    inputs.keys.append((name, str(spec)))
    inputs.makers.append(
        (name, lambda size, ts: pytree.tree_unflatten([make(size, ts) for make in makers], spec))
    )


def _constant(inputs: Inputs, tensor: torch.Tensor) -> Any:
    of_source = tensor.dim() >= 2 and inputs.source and tensor.shape[1] == inputs.source
    one = Beside(tensor.to(DEVICE), source=1 if of_source else None)
    if not tensor.is_floating_point() and tensor.dim() == 2:  # a mask, it may be
        if bool((tensor.cpu() == 1).all()):
            inputs.keys.append("ones")
            ones = partial(torch.ones, dtype=tensor.dtype, device=DEVICE)
            return lambda size, _: ones(*one.sizes_at(size))
        one.known = True
    number = inputs.add(one)
    return lambda size, tensors: tensors[number]


def _inputs(call: Call, kwargs: dict[str, Any], past: int, roles: Any) -> tuple[Inputs, str]:
    """And the name of the argument that is the cache."""
    cache = kwargs[_cache_name(kwargs)]
    source = 0
    if isinstance(cache, EncoderDecoderCache) and cache.cross_attention_cache.layers:
        source = cache.cross_attention_cache.get_seq_length()
    first, second = _asked(call, call.ids.to(DEVICE), kwargs, past)
    name = first.pop("of the cache")
    if second.pop("of the cache") != name or first.keys() != second.keys():
        raise NotInDaemon("its forwards are given other arguments with each token")
    inputs = Inputs(len(call.ids), past, [0] * len(call.ids), source)
    own = "decoder_input_ids" if call.model.config.is_encoder_decoder else "input_ids"
    later: list[Callable[[], None]] = []  # positions are told by the padding, which a mask tells
    for key, one in first.items():
        seen = Seen(one, second[key])
        if key == own:
            inputs.makers.append((key, lambda size, _: roles(size)["ids"]))
        elif not isinstance(one, torch.Tensor):
            _take_constant(inputs, key, one, seen.second)
        elif _grows(seen):
            _take_mask(inputs, key, one)
        elif _counts(seen):
            later.append(partial(_take_positions, inputs, key, one, roles))
        else:
            _take_constant(inputs, key, one, seen.second)
    for take in later:
        take()
    return inputs, name


# --- the cache ------------------------------------------------------------------------------------


def _take_states(inputs: Inputs, layer: Any) -> Callable[[list[torch.Tensor]], Any]:
    """Its states become tensors that each token's program writes."""
    numbers: list[tuple[str, int, int]] = []
    for name in ("conv_states", "recurrent_states"):
        held = getattr(layer, name)
        for index, tensor in held.items():
            if tensor is not None:
                held[index] = copied(tensor)
                numbers.append((name, index, inputs.add(Beside(held[index], is_written=True))))

    def make(tensors: list[torch.Tensor]) -> Any:
        other = copy.copy(layer)
        for name in ("conv_states", "recurrent_states"):
            setattr(other, name, dict(getattr(layer, name)))
        for name, index, number in numbers:
            getattr(other, name)[index] = tensors[number]
        return other

    return make


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
        for layer, (keys, values) in enumerate(numbers):
            held = DynamicLayer()
            held.keys, held.values = tensors[keys], tensors[values]
            held.dtype, held.device, held.is_initialized = held.keys.dtype, DEVICE, True
            other.layers.append(held)
            assert layer == len(other.layers) - 1
        return other

    return make


@dataclass
class Layers:
    """Those of a cache that keep tokens, and what makes a cache of the same kind for a capture."""

    windows: list[int]
    make: Callable[[Size, list[torch.Tensor]], tuple[Any, list[Any]]]  # and its group's layers


def _take_cache(inputs: Inputs, cache: Cache) -> Layers:
    own = _own_layers(cache)
    windows = [getattr(one, "sliding_window", 0) for one in own if _is_of_tokens(one)]
    states = [None if _is_of_tokens(one) else _take_states(inputs, one) for one in own]
    cross = None
    if isinstance(cache, EncoderDecoderCache):
        cross = _take_cross(inputs, cache.cross_attention_cache)
    inputs.keys.append((type(cache).__name__, tuple(windows), tuple(one is None for one in states)))

    def make(size: Size, tensors: list[torch.Tensor]) -> tuple[Any, list[Any]]:
        kept: list[Any] = []
        layers = []
        for take in states:
            if take is None:
                window = windows[len(kept)]
                kept.append(group_layer(len(kept), size.past, size.capacity, window))
            layers.append(kept[-1] if take is None else take(tensors))
        made: Any = Cache(layers=layers)
        return (made if cross is None else EncoderDecoderCache(made, cross(tensors))), kept

    return Layers(windows, make)


# --- programs -------------------------------------------------------------------------------------


def _sizes(inputs: Inputs, window: int) -> list[Size]:
    before = max(inputs.least, window)
    points = [(5, 29), (6, 29), (5, 31), (11, 41)]
    sizes = [Size(1, past + before, capacity + before, 17) for past, capacity in points]
    if inputs.source:
        sizes += [Size(1, 5 + before, 29 + before, 19), Size(1, 11 + before, 41 + before, 23)]
    return sizes


def _known(size: Size, one: Beside) -> torch.Tensor:
    """A mask in whose rows something is masked."""
    values = torch.ones(one.sizes_at(size), dtype=one.tensor.dtype)
    values[:, -1] = 0
    return values


def _capture_decode(
    call: Call, inputs: Inputs, layers: Layers, name: str, window: int, most: int, roles: Any
) -> Captured:
    """window: 0, or that of a cache that has outgrown it."""

    def capture(size: Size) -> tuple[Any, Any]:
        roles.clear()
        tensors = [
            _device.capture_beside(
                number,
                one.is_written,
                one.tensor.dtype,
                one.sizes_at(size),
                _known(size, one) if one.known else None,
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
        recorded = [recorded_at(lambda size=size: capture(size)) for size in sizes]
    except NotInDaemon:
        if not _show_own_mask(call.model, inputs):
            raise
        recorded = [recorded_at(lambda size=size: capture(size)) for size in sizes]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    least = max(inputs.least, window - 1 if window else 0)
    symbols = [("tokens", 1, 1), ("past", least, most - 1), ("capacity", least + 1, TOKENS_MOST)]
    if inputs.source:
        points = [[*point, size.source] for point, size in zip(points, sizes, strict=True)]
        symbols.append(("source", 1, inputs.source_most()))
    return Captured(united([one for one, _ in recorded], points, symbols), *recorded[-1][1])


def _show_own_mask(model: Any, inputs: Inputs) -> bool:
    """A decoder that is given no mask makes one of ones, of numbers that have no values in a
    capture, and looks at it. It is given that mask in whole numbers. False: it has one."""
    name = "decoder_attention_mask"
    takes = inspect.signature(type(model).forward).parameters
    if any(key == name for key, _ in inputs.makers) or name not in takes:
        return False
    rows = inputs.rows
    ones = partial(torch.ones, dtype=torch.int64, device=DEVICE)
    inputs.makers.append((name, lambda size, _: ones(rows, size.past + 1)))
    return True


class Roles:
    """What djinnd fills by itself, once for each capture."""

    def __init__(self, rows: int) -> None:
        self.rows, self.made = rows, dict[str, torch.Tensor]()

    def __call__(self, size: Size) -> "Roles":
        return self

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.made:
            role = "token_ids" if name == "ids" else name
            self.made[name] = _device.capture_input(role, torch.int64, [self.rows, 1], None)
        return self.made[name]

    def clear(self) -> None:
        self.made = {}


def _capture_adoption(
    rows: int, windows: list[int], logits: Any, keys: Any, wide: bool
) -> Captured:
    """The step of the prompt: its keys and values are appended as they were computed, and what the
    first token is drawn from is given. keys: heads, dims, dtype. wide: it outgrows the windows."""
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

    more = window if wide else 0
    sizes = [Size(7 + more, 0, 29 + more), Size(8 + more, 0, 29 + more)]
    sizes += [Size(7 + more, 0, 31 + more), Size(13 + more, 0, 41 + more)]
    if window and not wide and window <= 13:
        raise NotInDaemon(f"its sliding window has {window} tokens, too few to tell anything")
    recorded = [recorded_at(lambda size=size: capture(size)) for size in sizes]
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    least, most = 1, TOKENS_MOST
    if window:
        least, most = (window, TOKENS_MOST) if wide else (1, window - 1)
    symbols = [("tokens", least, most), ("past", 0, 0), ("capacity", least, TOKENS_MOST)]
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


def _check(call: Call) -> None:
    config = call.config
    if call.model.training:
        raise NotInDaemon("it is in training mode: call model.eval() first")
    if len(call.ids) > ROWS_MAX:
        raise NotInDaemon(f"it is to go on with {len(call.ids)} sequences at once")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise NotInDaemon(f"{name} is asked for")
    if config.prefill_chunk_size is not None or config.is_assistant:
        raise NotInDaemon("prefill in chunks, and assistants, take Python's loop")
    cache = call.kwargs[_cache_name(call.kwargs)]
    own = _own_layers(cache)
    if any(getattr(one, "keys", None) is not None for one in own) or any(
        any(one.has_previous_state.values()) for one in own if not _is_of_tokens(one)
    ):
        raise NotInDaemon("its cache holds tokens before the prompt")


def take_over(call: Call, banks: int = 1) -> Taken:
    """Computes the prompt here, and gives what djinnd's loop goes on from. Where that cannot be,
    the call's cache is as it was."""
    _check(call)
    cache = call.kwargs[_cache_name(call.kwargs)]
    before = copy.deepcopy(cache.__dict__)
    try:
        return _taken(call, cache, banks)
    except BaseException:
        cache.__dict__.clear()
        cache.__dict__.update(before)
        raise


def _taken(call: Call, cache: Cache, banks: int) -> Taken:
    model = call.model
    state.refresh(model, state.known_of(model))
    with torch.no_grad():
        output = model._prefill(call.ids, call.config, dict(call.kwargs), is_first_iteration=True)
        kwargs = model._update_model_kwargs_for_generation(
            output, dict(call.kwargs), is_encoder_decoder=model.config.is_encoder_decoder
        )
        if kwargs[_cache_name(kwargs)] is not cache:  # one for cross attention, too
            if getattr(cache, "_is_user_defined", False):
                raise NotInDaemon("its forward gives another cache than the caller's")
            cache = kwargs[_cache_name(kwargs)]
        logits = copied(output.logits[:, -1])
        layers = [one for one in _own_layers(cache) if _is_of_tokens(one)]
        past = layers[0].get_seq_length() if layers else call.ids.shape[1]
        roles = Roles(len(call.ids))
        try:
            inputs, name = _inputs(call, kwargs, past, roles)
        except NotInDaemon:
            raise
        except Exception as error:
            why = f"its next inputs cannot be told: {state.first_line(error)}"
            raise NotInDaemon(why) from error
        parts = _take_cache(inputs, cache)
        return _job(
            call,
            cache,
            inputs,
            parts,
            logits,
            layers,
            partial(_capture_decode, call, inputs, parts, name, roles=roles),
            banks,
        )


def _job(
    call: Call,
    cache: Cache,
    inputs: Inputs,
    parts: Layers,
    logits: torch.Tensor,
    layers: list[Any],
    decode: Any,
    banks: int,
) -> Taken:
    rows, prompt = call.ids.shape
    past = inputs.past
    if past < prompt:
        raise NotInDaemon("its cache has fewer tokens than its prompt")
    total = past + most_of(call.criteria, prompt) - prompt
    most = positions_of(call.model)
    if total > most:
        raise NotInDaemon(too_many(total, most))
    window = window_of(call.model)
    if any(one not in (0, window) for one in parts.windows):
        raise NotInDaemon("its cache has other sliding windows than its configuration")

    def at(tokens_before: int) -> Captured:
        stretch = stretch_of(window, tokens_before, 1)
        beyond = window if stretch is Stretch.BEYOND else 0
        limit = min(most, window - 1) if window and not beyond else most
        key = ("decode", inputs.key(), most, beyond)
        return remembered(call.model, key, lambda: decode(window=beyond, most=limit))

    first, last = past, total - 2
    found = Programs(_adoption(call.model, rows, parts.windows, logits, layers, past), at(first))
    if first < window - 1 <= last:
        found.late, found.late_from = at(last), window - 1
    if layers and found.decode.geometry != found.prefill.geometry:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    outlives = bool(call.config.return_dict_in_generate) or getattr(
        cache, "_is_user_defined", False
    )
    job = Job(cache, prompt, 0, past, inputs.padding, found, total, outlives, banks)
    kept = [copied(one) for layer in layers for one in (layer.keys, layer.values)]
    beside = [one.tensor for one in inputs.beside]
    return Taken(job, [logits, *kept], beside, [inputs.source] if inputs.source else [], layers)


def _adoption(
    model: Any, rows: int, windows: list[int], logits: torch.Tensor, layers: list[Any], past: int
) -> Captured:
    shapes = {(one.keys.shape[1], dims_of(one.keys, one.values), one.keys.dtype) for one in layers}
    if len(shapes) > 1:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    keys = next(iter(shapes), None)
    window = max(windows, default=0)
    what = (rows, tuple(windows), (logits.shape[1], logits.dtype), keys, 0 < window <= past)
    return remembered(
        model,
        ("adoption", *what),
        lambda: _capture_adoption(rows, windows, what[2], keys, what[4]),
    )


def give_back(taken: Taken, held: Any) -> None:
    """The cache gets all tokens that the group has."""
    copies = held.contents() if taken.layers else []
    for layer, (keys, values) in zip(taken.layers, copies, strict=True):
        begin = 0
        if type(layer) is DynamicSlidingWindowLayer:
            layer.cumulative_length = held.length
            begin = max(0, held.length - layer.sliding_window + 1)
        layer.keys, layer.values = keys[:, :, begin:], values[:, :, begin:]


__all__ = ["Taken", "give_back", "take_over"]
