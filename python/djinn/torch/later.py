# SPDX-License-Identifier: Apache-2.0
"""What a model is given at the tokens after its prompt.

That is seen, not known: the model's own Python is asked for the inputs of the next two tokens. What
is the same in both is a constant; a mask to which a one was added is the mask of the tokens; what
grew by one are positions.

    Inputs   those arguments, apart: what makes them again for a capture, of a size and of tensors
    Beside   a tensor that each token's program is given beside the sequence group
    Roles    what djinnd fills by itself
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
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from . import _device
from .cache import GrowingLayer
from .capture import Size, group_layer
from .job import Call
from .replay import PLAIN
from .state import DEVICE, NotInDaemon, first_line

SOURCE_LEAST = 64  # of what programs are admitted for
BOTH = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
OF_TOKENS = (DynamicLayer, GrowingLayer, DynamicSlidingWindowLayer, *BOTH)
OF_STATES = (LinearAttentionLayer, *BOTH)


class ForThisCall(NotInDaemon):
    """Another call of the same kind may fare better."""


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
    """What a forward at a later token is given."""

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


def cache_name(kwargs: dict[str, Any]) -> str:
    names = [name for name, one in kwargs.items() if isinstance(one, Cache)]
    if len(names) != 1 or not kwargs.get("use_cache"):
        raise NotInDaemon("it is to generate without a cache")
    return names[0]


def _like(cache: Cache, layer: Callable[[Any], Any]) -> Cache:
    """A cache of the same kind, with layer(original) for each of its layers."""
    if isinstance(cache, EncoderDecoderCache):
        other = copy.copy(cache)
        other.self_attention_cache = _like(cache.self_attention_cache, layer)
        return other
    other = copy.copy(cache)
    other.__dict__["layers"] = [layer(one) for one in cache.layers]
    return other


def own_layers(cache: Cache) -> list[Any]:
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if type(own) is not DynamicCache:
        raise NotInDaemon(f"its cache is a {type(own).__name__}")
    return own.layers


def keeps_tokens(layer: Any) -> bool:
    """Whether a layer of a cache has keys and values of tokens."""
    if type(layer) not in (*OF_TOKENS, *OF_STATES):
        raise NotInDaemon(f"its cache has a {type(layer).__name__}")
    return type(layer) in OF_TOKENS


def has_states(layer: Any) -> bool:
    return type(layer) in OF_STATES


def layer_like(original: Any, index: int, past: int, capacity: int) -> Any:
    """A layer of a sequence group, with the original's states."""
    if not keeps_tokens(original):
        return copy.copy(original)
    layer = group_layer(index, past, capacity, getattr(original, "sliding_window", 0))
    if has_states(original):
        of_both = type("GroupAndStatesLayer", (type(layer), LinearAttentionLayer), {})
        layer.__class__ = of_both
        layer.__dict__ = {**original.__dict__, **layer.__dict__}
    return layer


def _next_two(call: Call, ids: torch.Tensor, kwargs: dict[str, Any], past: int) -> list[dict]:
    """What the model's Python makes for the next two tokens."""
    asked = []
    name = cache_name(kwargs)
    last = ids[:, -1:]
    vocabulary = call.model.config.get_text_config(decoder=True).vocab_size
    for more in (1, 2):
        token = (last + more) % vocabulary
        ids = torch.cat([ids, token], dim=1)
        longer = _like(kwargs[name], lambda one, more=more: layer_like(one, 0, past + more - 1, 0))
        given = {**kwargs, name: longer}
        found = call.model.prepare_inputs_for_generation(ids, next_sequence_length=1, **given)
        asked.append({key: one for key, one in found.items() if one is not longer})
        asked[-1]["of the cache"] = next(key for key, one in found.items() if one is longer)
        asked[-1]["of the token"] = token
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
    is_one = a.dim() > 0 and a.shape[-1] == 1
    return is_whole and is_one and a.shape == b.shape and _is_equal(a + 1, b)


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
        raise ForThisCall("rows are padded elsewhere than on their left")
    inputs.padding = padding.tolist()
    inputs.keys.append((name, "padded", mask.dtype, apart))

    def make(size: Size, _: Any) -> torch.Tensor:
        looks = torch.ones(rows, 1, 1, size.past + 1, dtype=torch.bool)
        looks[0, :, :, : size.padding] = False
        role = _device.capture_input("attention_mask", torch.bool, list(looks.shape), looks)
        return role[:, 0, 0, : size.past + 1 - apart].to(mask.dtype)

    inputs.makers.append((name, make))


def _take_positions(inputs: Inputs, name: str, positions: torch.Tensor, roles: "Roles") -> None:
    """Those of the group's rows, with what is between them and these."""
    of_group = inputs.past - torch.tensor(inputs.padding)[:, None]
    apart = positions.cpu() - of_group
    if positions.dim() < 2 and apart.numel() != positions.numel():
        raise ForThisCall(f"{name} counts for several rows at once")
    inputs.keys.append((name, "positions", positions.dtype, tuple(positions.shape)))
    if not apart.any() and positions.dim() == 2:
        inputs.makers.append((name, lambda size, _: roles["positions"].to(positions.dtype)))
        return
    number = inputs.add(Beside(apart.to(DEVICE)))

    def make(size: Size, tensors: list[torch.Tensor]) -> torch.Tensor:
        made = (roles["positions"] + tensors[number]).to(positions.dtype)
        return made if positions.dim() > 1 else made.reshape(positions.shape)

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
        values = tensor.cpu()
        if bool((values == 1).all()):
            inputs.keys.append(("ones", *one.kind()))
            ones = partial(torch.ones, dtype=tensor.dtype, device=DEVICE)
            return lambda size, _: ones(*one.sizes_at(size))
        one.known = bool(((values == 0) | (values == 1)).all())
    number = inputs.add(one)
    return lambda size, tensors: tensors[number]


def inputs_of(call: Call, kwargs: dict[str, Any], past: int, roles: "Roles") -> tuple[Inputs, str]:
    """And the name of the argument that is the cache."""
    cache = kwargs[cache_name(kwargs)]
    source = 0
    if isinstance(cache, EncoderDecoderCache) and cache.cross_attention_cache.layers:
        source = cache.cross_attention_cache.get_seq_length()
    try:
        first, second = _next_two(call, call.ids.to(DEVICE), kwargs, past)
    except NotInDaemon:
        raise
    except Exception as error:  # the model's own, of arguments that are not quite its loop's
        why = f"what its later tokens are given cannot be told: {first_line(error)}"
        raise NotInDaemon(why) from error
    name, token = first.pop("of the cache"), first.pop("of the token")
    other = second.pop("of the token")
    if second.pop("of the cache") != name or first.keys() != second.keys():
        raise NotInDaemon("its forwards are given other arguments with each token")
    inputs = Inputs(len(call.ids), past, [0] * len(call.ids), source)
    own = "decoder_input_ids" if call.model.config.is_encoder_decoder else "input_ids"
    later: list[Callable[[], None]] = []  # positions are told by the padding, which a mask tells
    for key, one in first.items():
        seen = Seen(one, second[key])
        if key == own:
            if not (_is_equal(one, token) and _is_equal(seen.second, other)):
                raise NotInDaemon("its forwards are given other ids than the last token's")
            inputs.makers.append((key, lambda size, _: roles["ids"]))
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


def example_of(size: Size, one: Beside) -> torch.Tensor:
    """A mask in whose rows something is masked: not as many columns at one size as at another, so
    that a program in which their number has become a constant is found out."""
    values = torch.ones(one.sizes_at(size), dtype=one.tensor.dtype)
    values[:, -1 - size.past * size.past % 4 :] = 0
    return values


def show_own_mask(model: Any, inputs: Inputs) -> bool:
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
    """What djinnd fills by itself, made once for each capture."""

    def __init__(self, rows: int) -> None:
        self.rows, self.made = rows, dict[str, torch.Tensor]()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.made:
            role = "token_ids" if name == "ids" else name
            self.made[name] = _device.capture_input(role, torch.int64, [self.rows, 1], None)
        return self.made[name]

    def clear(self) -> None:
        self.made = {}


__all__ = [
    *(
        "Beside",
        "ForThisCall",
        "Inputs",
        "Roles",
        "cache_name",
        "example_of",
        "has_states",
        "inputs_of",
    ),
    *("keeps_tokens", "layer_like", "own_layers", "show_own_mask"),
]
