# SPDX-License-Identifier: Apache-2.0
"""A model's forward as two programs of djinnd: prefill, and decode for each token after it.

It is captured at a few sizes on inputs without values, with a cache whose keys and values are those
of a sequence group. The recordings at these sizes become one program each, which holds for all.
"""

import enum
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from djinn.errors import RequestError

from . import _device, state
from .config import config
from .state import DEVICE, NotInDaemon

SMALL_WINDOW = 32
# Programs of one model's generations, each of which djinnd keeps for this process.
KINDS_MAX = 256
KEPT_ELSEWHERE = "some of its layers keep no keys and values in its cache"


class GroupLayer(CacheLayerMixin):
    """One layer's part of a sequence group under capture."""

    is_sliding = False
    # Whether attention is given the group's own bytes: PyTorch's fused one has the same bits on
    # them as on a copy, and products of matrices need not.
    sees_slots = True

    def __init__(self, index: int, past: int, capacity: int) -> None:
        super().__init__()
        self.index, self.past, self.capacity = index, past, capacity
        self.geometry: tuple[int, int, int, torch.dtype] | None = None
        self.dims = (0, 0)
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dims = dims_of(key_states, value_states)
        rows, heads = key_states.shape[:2]
        self.geometry = (rows, heads, max(self.dims), key_states.dtype)
        self.keys, self.values = slots_of(self.index, self.geometry, self.capacity, self.dims)

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
        begin = self.begin()
        seen = (self.keys[:, :, begin:end], self.values[:, :, begin:end])
        return seen if self.sees_slots else tuple(copied(one) for one in seen)

    def begin(self) -> int:
        """The first slot that the new tokens may look at."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past + query_length, 0

    def get_seq_length(self) -> int:
        return self.past

    def get_max_length(self) -> int:
        return -1


def dims_of(keys: torch.Tensor, values: torch.Tensor) -> tuple[int, int]:
    """Of a head's key and value: a group's slots have the larger one."""
    is_alike = keys.shape[:-1] == values.shape[:-1] and keys.dtype == values.dtype
    if keys.dim() != 4 or not is_alike:
        raise NotInDaemon("its keys and values differ in shape or dtype")
    return keys.shape[-1], values.shape[-1]


def slots_of(
    index: int,
    geometry: tuple[int, int, int, torch.dtype],
    capacity: int,
    dims: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's slots of keys and of values under capture."""
    rows, heads, dim, dtype = geometry
    sizes = [rows, heads, capacity, dim]
    keys, values = (_device.capture_buffer(index, part, dtype, sizes) for part in (False, True))
    return keys[..., : dims[0]], values[..., : dims[1]]


class WindowLayer(GroupLayer):
    """One whose cache would be a DynamicSlidingWindowLayer: the group has all tokens, and attention
    is given those that such a layer would have kept."""

    is_sliding = True

    def __init__(self, index: int, past: int, capacity: int, window: int) -> None:
        super().__init__(index, past, capacity)
        self.sliding_window, self.cumulative_length = window, past

    def begin(self) -> int:
        return max(0, self.past - self.sliding_window + 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past + query_length - self.begin(), self.begin()

    def get_max_length(self) -> int:
        return self.sliding_window


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def note_attention(model: Any, layers: list[Any]) -> None:
    """What kind of attention the layers are for."""
    text = model.config.get_text_config(decoder=True)  # a composite model has one for each part
    for layer in layers:
        layer.sees_slots = text._attn_implementation == "sdpa"


def group_layer(index: int, past: int, capacity: int, window: int) -> GroupLayer:
    """window: 0 for a layer that keeps all tokens."""
    if window:
        return WindowLayer(index, past, capacity, window)
    return GroupLayer(index, past, capacity)


@dataclass(frozen=True)
class Size:
    """Where a forward is captured: new tokens, tokens before them, token slots of the group, the
    length of what cross attention looks at, and the padding of a row, where rows are padded."""

    tokens: int
    past: int
    capacity: int
    source: int = 0
    padding: int = 1


def _sizes(prefill: bool, past: bool) -> list[Size]:
    """Enough of them to tell the three apart, and one to check; no two numbers of one are equal."""
    if not prefill:
        return [Size(1, 5, 29), Size(1, 6, 29), Size(1, 5, 31), Size(1, 11, 41)]
    if not past:
        return [Size(7, 0, 29), Size(8, 0, 29), Size(7, 0, 31), Size(13, 0, 41)]
    return [Size(7, 5, 29), Size(8, 5, 29), Size(7, 6, 29), Size(7, 5, 31), Size(13, 11, 41)]


def _small_sizes(prefill: bool, past: bool) -> list[Size]:
    """The same, for windows of few tokens: 15 at least."""
    if not prefill:
        return [Size(1, 5, 29), Size(1, 6, 29), Size(1, 5, 31), Size(1, 9, 41)]
    if not past:
        return [Size(4, 0, 29), Size(5, 0, 29), Size(4, 0, 31), Size(9, 0, 41)]
    return [Size(3, 5, 29), Size(4, 5, 29), Size(3, 6, 29), Size(3, 5, 31), Size(5, 9, 41)]


class Stretch(enum.Enum):
    """Where a forward's tokens stand to a sliding window: what masks and caches are like changes as
    keys, old and new, come to be as many as the window has."""

    WITHIN = 0  # they are fewer; or there is no window
    ACROSS = 1  # the tokens before could be one more without leaving it, and the new ones fill it
    BEYOND = 2  # the tokens before fill it but for one


def stretch_of(window: int, past: int, tokens: int) -> Stretch:
    if window == 0 or past + tokens < window:
        return Stretch.WITHIN
    return Stretch.BEYOND if past >= window - 1 else Stretch.ACROSS


@dataclass
class Captured:
    template: Any
    geometry: tuple[int, int, int, int, torch.dtype]  # rows, layers, heads, dim
    output: type  # of a forward
    dims: tuple[int, int] = (0, 0)  # of a key and of a value


def _capture_at(model: Any, kind: "Kind", size: Size) -> tuple[Any, Any]:
    """The recording, with the group's geometry and the class of the forward's result."""
    rows, masked = kind.rows, kind.masked
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    windows = kind.windows or (0,) * layers
    if len(windows) != layers:
        raise NotInDaemon("its cache has other layers than the model")
    made = enumerate(windows)
    cache = Cache(layers=[group_layer(i, size.past, size.capacity, one) for i, one in made])
    note_attention(model, cache.layers)
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
    geometry, dims = geometry_of(cache.layers), cache.layers[0].dims
    del cache, kwargs, ids, output  # what the model keeps is refused, and these would look like it
    return _device.capture_finish([logits], True), (geometry, kind, dims)


def geometry_of(layers: list[Any]) -> tuple[int, int, int, int, torch.dtype]:
    """Of the group that they are parts of, once a forward has appended to each."""
    if any(layer.geometry is None for layer in layers):
        raise NotInDaemon(KEPT_ELSEWHERE)
    if len({(layer.geometry, layer.dims) for layer in layers}) != 1:
        raise NotInDaemon("its layers do not all keep keys and values of one shape")
    one = layers[0].geometry
    return (one[0], len(layers), *one[1:])


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
    looks[0, :, :, : size.padding] = False
    mask = _device.capture_input("attention_mask", torch.bool, list(looks.shape), looks)
    return mask.any(dim=2)[:, 0].to(torch.int64)


@dataclass(frozen=True)
class Kind:
    """What programs depend on, beside the model."""

    rows: int
    masked: bool
    continues: bool  # tokens are in the cache before the prompt
    most: int  # tokens of a row
    window: int = 0  # tokens that some layers look at; 0: all look at all
    windows: tuple[int, ...] = ()  # what the cache keeps of each layer, 0: all; none: all of all
    stretch: Stretch = Stretch.WITHIN


def _placed(sizes: list[Size], kind: Kind) -> list[Size]:
    """The sizes, moved to where the kind's tokens stand to its window."""
    window = kind.window
    if kind.stretch is Stretch.WITHIN:
        if window and max(one.past + one.tokens for one in sizes) >= window:
            raise NotInDaemon(f"its sliding window has {window} tokens, too few to tell anything")
        return sizes
    if kind.stretch is Stretch.BEYOND:
        return [moved(one, window, window) for one in sizes]
    if max(one.past for one in sizes) > window - 2:
        raise NotInDaemon(f"its sliding window has {window} tokens, too few to tell anything")
    return [Size(one.tokens + window, one.past, one.capacity + window) for one in sizes]


def moved(size: Size, by: int, window: int) -> Size:
    """The size with so many more tokens before it; the padding reaches into the window."""
    past = size.past + by
    return replace(size, past=past, capacity=size.capacity + by, padding=past - window + 2)


def _symbols(prefill: bool, kind: Kind) -> list[tuple[str, int, int]]:
    """Each with its least and its largest value."""
    after_some = kind.masked or kind.continues
    least, most = 0, kind.most
    if kind.stretch is Stretch.WITHIN and kind.window:
        most = min(most, kind.window - 1)
    if kind.stretch is Stretch.BEYOND:
        least = kind.window - 1
    before = most - 2 if kind.stretch is not Stretch.ACROSS else kind.window - 2
    if prefill:
        symbols = [("tokens", 2, most - least), ("past", least, before if after_some else 0)]
    else:
        symbols = [("tokens", 1, 1), ("past", least, most - 1)]
    return [*symbols, ("capacity", max(least + symbols[0][1], 2), kind.most)]


@dataclass
class Recorded:
    """What a program is made of: recordings of a forward at several sizes, and the symbols' values
    at each."""

    recordings: list[Any]
    points: list[list[int]]
    symbols: list[tuple[str, int, int]]
    geometry: tuple[int, int, int, int, torch.dtype]  # as Captured's
    output: type
    dims: tuple[int, int]


def recorded(model: Any, kind: Kind, prefill: bool) -> Recorded:
    is_small = 0 < kind.window < SMALL_WINDOW
    make_sizes = _small_sizes if is_small else _sizes
    sizes = _placed(make_sizes(prefill, kind.masked or kind.continues), kind)
    points = [[size.tokens, size.past, size.capacity] for size in sizes]
    made = [recorded_at(model, partial(_capture_at, model, kind, size)) for size in sizes]
    return Recorded([one for one, _ in made], points, _symbols(prefill, kind), *made[-1][1])


def _capture(model: Any, kind: Kind, prefill: bool) -> Captured:
    made = recorded(model, kind, prefill)
    template = united(made.recordings, made.points, made.symbols)
    return Captured(template, made.geometry, made.output, made.dims)


def parts_of(kind: Kind) -> list[tuple[bool, int, Kind]]:
    """The programs of all generations into an empty group: whether one is for a prompt, from how
    many tokens on it is the one (of the prompt, or before the step), and its kind."""
    later = replace(kind, continues=True)
    parts = [(True, 2, kind), (False, 0, later)]
    if 0 < kind.window < kind.most:
        parts.append((True, kind.window, replace(kind, stretch=Stretch.ACROSS)))
        parts.append((False, kind.window - 1, replace(later, stretch=Stretch.BEYOND)))
    return parts


def extends(kind: Kind) -> Kind:
    """Of the program that reads a prompt behind its first part, of no row that is padded and within
    all windows."""
    return replace(kind, continues=True, stretch=Stretch.WITHIN)


def recorded_at(model: Any, capture: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """What capture() records of the model, or why nothing."""
    try:
        with state.capturing(model), torch.no_grad():
            return capture()
    except NotInDaemon:
        raise
    except Exception as error:
        raise NotInDaemon(f"its forward cannot be captured: {state.first_line(error)}") from error


@contextmanager
def _uniting() -> Iterator[None]:
    try:
        yield
    except RequestError:  # it was to be fast, and cannot
        raise
    except Exception as error:
        raise NotInDaemon(
            f"its recordings are no one program: {state.first_line(error)}"
        ) from error


def united(recordings: list[Any], points: list[list[int]], symbols: list[Any]) -> Any:
    """One program of them, whose symbols have these values at each."""
    with _uniting():
        return _device.make_template(recordings, points, symbols, config.numerics)


def united_text(made: Recorded) -> str:
    """Likewise, as SRG text."""
    with _uniting():
        return _device.graph_text(made.recordings, made.points, made.symbols)


@dataclass
class Programs:
    """What a generation runs: at its prompt, at each token after it, and, where rows outgrow a
    window, at each from `late_from` tokens before it on."""

    prefill: Captured
    decode: Captured
    late: Captured | None = None
    late_from: int = 0
    # What takes prefill's place behind the first part of a prompt that runs in parts, or why it
    # does not, if its numerics are fast and it is long enough.
    extend: Captured | None = None
    one_pass: str = ""

    def at(self, tokens: int, past: int) -> Captured:
        if tokens > 1:
            return self.prefill
        return self.late if self.late is not None and past >= self.late_from else self.decode

    @property
    def all(self) -> list[Captured]:
        return [self.prefill, self.decode, *([self.late] if self.late else [])]


def programs(model: Any, kind: Kind, past: int, tokens: int, total: int) -> Programs:
    """For a prompt of so many tokens after others, and for each token after it, up to a total."""

    def program(begin: int, count: int) -> Captured:
        stretch = stretch_of(kind.window, begin, count)
        what = replace(kind, stretch=stretch)
        if count == 1:  # the same with or without a past
            what = replace(what, continues=True)
        return remembered(model, (what, count > 1), lambda: _capture(model, what, count > 1))

    state.refresh(model, state.known_of(model))
    first, last = past + tokens, total - 2  # tokens before the first step, and before the last one
    found = Programs(program(past, tokens), program(first, 1))
    if first < kind.window - 1 <= last:
        found.late, found.late_from = program(last, 1), kind.window - 1
    part = _device.PROMPT_PART - past % _device.PROMPT_PART
    if tokens > part and found.prefill.template.numerics != "exact":
        _add_extend(model, found, kind, past + tokens)
    return found


def _add_extend(model: Any, found: Programs, kind: Kind, end: int) -> None:
    """For a prompt that ends behind so many tokens. A row that is padded has other positions than
    its slots, and where a window is outgrown masks change in a part's midst."""
    if kind.masked:
        found.one_pass = "its rows are padded"
        return
    if stretch_of(kind.window, 0, end) is not Stretch.WITHIN:
        found.one_pass = "it outgrows a sliding window"
        return
    what = extends(kind)
    try:
        found.extend = remembered(model, (what, True), lambda: _capture(model, what, True))
    except NotInDaemon as reason:
        found.one_pass = f"what follows its first tokens is no program: {reason}"


def remembered(model: Any, key: Any, make: Callable[[], Any]) -> Any:
    """What make() gave for the model as it is, or why it gave nothing. Precondition: what is known
    of the model was refreshed."""
    known = state.known_of(model)
    key = (key, state.context())
    if key not in known.captured:
        try:
            known.captured[key] = make()
        except NotInDaemon as reason:
            known.captured[key] = str(reason)  # the exception would hold the model
        _trim(known)
    found = known.captured[key]
    if isinstance(found, str):
        raise NotInDaemon(found)
    return found


def remember_refusal(known: state.Known, key: Any, why: str) -> None:
    known.captured[key] = why
    _trim(known)


def _trim(known: state.Known) -> None:
    for oldest in list(known.captured)[:-KINDS_MAX]:
        del known.captured[oldest]


__all__ = [
    *(
        "KEPT_ELSEWHERE",
        "Captured",
        "GroupLayer",
        "Kind",
        "Programs",
        "Recorded",
        "Size",
        "Stretch",
        "copied",
        "dims_of",
    ),
    *("geometry_of", "group_layer", "moved", "note_attention", "parts_of", "programs"),
    *("recorded", "recorded_at"),
    *("remember_refusal", "remembered", "slots_of", "stretch_of", "united"),
    "united_text",
]
