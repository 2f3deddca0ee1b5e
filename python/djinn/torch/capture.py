# SPDX-License-Identifier: Apache-2.0
"""A model's forward as two programs of djinnd: prefill, and decode for each token after it.

It is captured at a few sizes on inputs without values, with a cache whose keys and values are those
of a sequence group. The recordings at these sizes become one program each, which holds for all.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from djinn.errors import RequestError

from . import _device, state
from .config import config
from .state import DEVICE, NotInDaemon


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
        template = _device.make_template(
            recordings, points, [*symbols, ("capacity", 2, kind.most)], config.numerics
        )
    except RequestError:  # it was to be fast, and cannot
        raise
    except Exception as error:
        raise NotInDaemon(
            f"its recordings are no one program: {state.first_line(error)}"
        ) from error
    return Captured(template, *found)


def programs(model: Any, kind: Kind, tokens: int) -> tuple[Captured, Captured]:
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


__all__ = ["Captured", "Kind", "programs"]
