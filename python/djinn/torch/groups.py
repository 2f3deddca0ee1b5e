# SPDX-License-Identifier: Apache-2.0
"""A cache whose keys and values are a sequence group of djinnd.

    hold(cache, held)   a DynamicCache becomes a GroupCache, the same object
    release()           and the other way: its layers get copies of what the group held

transformers' code asks a cache for its length, and crops it: that much a group answers. Whoever
looks further, at its layers or a copy, or calls the model with it, finds an ordinary cache on the
device. So a view of old keys that somebody holds is never a view of the group.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache


@dataclass
class Held:
    """A sequence group, and what is known here of what it holds."""

    group: Any  # _device.Group
    geometry: tuple[int, int, int, int, torch.dtype]  # rows, layers, heads, dim
    capacity: int
    banks: int  # 2: its rows can be reordered
    model: "weakref.ref[Any]"
    padding: list[int]  # on the left of each row
    dims: tuple[int, int]  # of a key and of a value, in slots of the larger one
    length: int = 0
    ids: torch.Tensor | None = None  # [rows, length] on the CPU; None: not known here
    loop: Any = None  # in transformers' own: its Programs
    tokens: int = 0  # and how many of the prompt are still to come

    @property
    def is_padded(self) -> bool:
        return any(self.padding)

    def crop(self, length: int) -> None:
        self.group.crop(length)
        self.length = length
        self.ids = None if self.ids is None else self.ids[:, :length]

    def contents(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of each layer's keys and values."""
        copies = self.group.contents(self.length) if self.length else []
        key, value = self.dims
        pairs = zip(copies[::2], copies[1::2], strict=True)
        return [(keys[..., :key], values[..., :value]) for keys, values in pairs]

    def reorder(self, rows: list[int]) -> None:
        """Row r becomes what row rows[r] was."""
        if rows != list(range(len(rows))):
            self.group.reorder(rows)
            self.padding = [self.padding[row] for row in rows]
            self.ids = None if self.ids is None else self.ids[rows]


class GroupCache(DynamicCache):
    """Made by hold() alone."""

    _held: Held

    @property
    def layers(self) -> Any:
        self.release()
        return self.__dict__["layers"]

    @layers.setter
    def layers(self, layers: Any) -> None:
        self.release()
        self.__dict__["layers"] = layers

    def release(self) -> None:
        held = self._held
        copies = held.contents()
        del self.__dict__["_held"]
        self.__class__ = DynamicCache  # type: ignore[assignment]
        for layer, (keys, values) in enumerate(copies):
            self.update(keys, values, layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._held.length if layer_idx < self._held.geometry[1] else 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return True

    def crop(self, tokens_to_remove: int) -> None:
        """Crops as every cache does: a number above zero is the length that stays."""
        held = self._held
        left = tokens_to_remove if tokens_to_remove > 0 else held.length + tokens_to_remove
        if left < held.length and tokens_to_remove != 0:
            held.crop(max(left, 0))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self._held.banks == 2:
            self._held.reorder(beam_idx.tolist())
        else:
            super().reorder_cache(beam_idx)  # of copies

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.release()  # copies are apart
        return self.__reduce_ex__(protocol)


def hold(cache: DynamicCache, held: Held) -> None:
    cache.__class__ = GroupCache
    cache._held = held


def held_of(cache: Any) -> Held | None:
    return cache._held if type(cache) is GroupCache else None


__all__ = ["GroupCache", "Held", "held_of", "hold"]
