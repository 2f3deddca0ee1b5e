# SPDX-License-Identifier: Apache-2.0
"""A ghost's own cache of keys and values: it grows without concatenation.

    Slots         keys, or values, of one layer: tokens one after another, and room for more
    GrowingLayer  in place of transformers' DynamicLayer, in a DynamicCache that a ghost makes

An append is one `djinn::kv_append` in place, and a layer's attention reads a view of all tokens so
far. Slots are laid out token by token, [capacity, rows, heads, dim], and seen as [rows, heads,
tokens, dim]: what a step writes is one run of bytes, so djinnd saves those alone before it writes
them. Attention gives the same bits on that layout as on a contiguous one.

Whoever holds a view of a cache, of keys before an append or a crop, keeps what it shows: while any
other tensor is on the bytes, the next append copies them first. A cache that the user makes is left
as it is, and so are layers of other kinds.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from .state import DEVICE

CAPACITY_MIN = 64

_making = threading.local()


@contextmanager
def made_by_ghost() -> Iterator[None]:
    """Each DynamicCache that this thread makes meanwhile is a ghost's own."""
    before = is_made_by_ghost()
    _making.ghost = True
    try:
        yield
    finally:
        _making.ghost = before


def is_made_by_ghost() -> bool:
    return getattr(_making, "ghost", False)


def let_grow(cache: Any) -> None:
    """A new DynamicCache's layers of full attention become layers that grow."""
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    cache.layers = [
        GrowingLayer() if type(one) is DynamicLayer and not one.is_initialized else one
        for one in cache.layers
    ]


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether another tensor is on the same bytes."""
    # The storage's own object counts, too.
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2


def is_sealed(tensor: torch.Tensor) -> bool:
    """Whether PyTorch lets nobody write it here: it is of an inference mode that has ended."""
    return tensor.is_inference() and not torch.is_inference_mode_enabled()


class Slots:
    """Either a tensor as transformers made it, or the first `length` tokens of a buffer."""

    def __init__(self) -> None:
        self.given: torch.Tensor | None = None
        self.buffer: torch.Tensor | None = None  # [capacity, rows, heads, dim]
        self.length = 0

    def tensor(self) -> torch.Tensor | None:
        return self.given if self.buffer is None else self._slots(0, self.length)

    def put(self, tensor: torch.Tensor | None) -> None:
        """What a crop makes of the buffer's own tokens stays on it."""
        if tensor is not None and self._is_start(tensor):
            self.length = tensor.shape[2]
            return
        self.given, self.buffer, self.length = tensor, None, 0
        if tensor is not None and tensor.dim() == 4:
            self.length = tensor.shape[2]

    def takes(self, fresh: torch.Tensor) -> bool:
        """Whether it can append that in place: tokens beside others like them, on our device."""
        known = self.given if self.buffer is None else self.buffer
        if known is None or known.dim() != 4 or fresh.dim() != 4 or self.length == 0:
            return False
        rows, heads = (0, 1) if self.buffer is None else (1, 2)
        return (
            fresh.device == known.device == DEVICE
            and fresh.dtype == known.dtype
            and (fresh.shape[0], fresh.shape[1]) == (known.shape[rows], known.shape[heads])
            and fresh.shape[3] == known.shape[3]
            and not (torch.is_grad_enabled() and (fresh.requires_grad or known.requires_grad))
        )

    def append(self, fresh: torch.Tensor) -> torch.Tensor:
        """Precondition: takes(fresh)."""
        end = self.length + fresh.shape[2]
        if self.buffer is None or end > self.buffer.shape[0]:
            self.move(max(2 * end, CAPACITY_MIN))
        elif is_shared(self.buffer) or is_sealed(self.buffer):
            self.move(self.buffer.shape[0])
        torch.ops.djinn.kv_append(self._slots(self.length, end), fresh, 0)
        self.length = end
        return self._slots(0, end)

    def map_rows(self, change: Any) -> None:
        """change(tensor, dimension of the rows) gives a new tensor."""
        if self.buffer is not None:
            self.buffer = change(self.buffer, 1)
        else:
            self.given = change(self.given, 0)

    def _slots(self, begin: int, end: int) -> torch.Tensor:
        assert self.buffer is not None
        _, rows, heads, dim = self.buffer.shape
        token = rows * heads * dim
        return self.buffer.as_strided(
            (rows, heads, end - begin, dim), (heads * dim, dim, token, 1), begin * token
        )

    def _is_start(self, tensor: torch.Tensor) -> bool:
        if self.buffer is None or tensor.dim() != 4 or tensor.shape[2] > self.length:
            return False
        same = self._slots(0, tensor.shape[2])
        return tensor.dtype == same.dtype and tensor.is_set_to(same)

    def move(self, capacity: int) -> None:
        """Into a new buffer, which nobody else sees."""
        old = self.tensor()
        assert old is not None
        rows, heads, _, dim = old.shape
        self.buffer = torch.empty((capacity, rows, heads, dim), dtype=old.dtype, device=old.device)
        self.given = None
        torch.ops.djinn.kv_append(self._slots(0, self.length), old, 0)


class GrowingLayer(DynamicLayer):
    """A layer of a ghost's own DynamicCache. Each look at its keys or values is a tensor of its
    own, so that who holds one can be told from the layer."""

    def __init__(self, **kwargs: Any) -> None:
        self._keys, self._values = Slots(), Slots()
        super().__init__(**kwargs)

    @property
    def keys(self) -> torch.Tensor | None:
        return self._keys.tensor()

    @keys.setter
    def keys(self, tensor: torch.Tensor | None) -> None:
        self._keys.put(tensor)

    @property
    def values(self) -> torch.Tensor | None:
        return self._values.tensor()

    @values.setter
    def values(self, tensor: torch.Tensor | None) -> None:
        self._values.put(tensor)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not (self._keys.takes(key_states) and self._values.takes(value_states)):
            return super().update(key_states, value_states, *args, **kwargs)
        return self._keys.append(key_states), self._values.append(value_states)

    def get_seq_length(self) -> int:
        return self._keys.length if self._keys.buffer is not None else super().get_seq_length()

    def reset(self) -> None:
        # This is done in place, as transformers does it, but not in what others hold of former
        # tokens.
        for slots in (self._keys, self._values):
            if slots.buffer is not None and is_shared(slots.buffer):
                slots.move(slots.buffer.shape[0])
        super().reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._map_rows(lambda one, rows: one.index_select(rows, beam_idx.to(one.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_rows(lambda one, rows: one.repeat_interleave(repeats, dim=rows))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map_rows(lambda one, rows: one[(slice(None),) * rows + (indices,)])

    def _map_rows(self, change: Any) -> None:
        if self.get_seq_length() > 0:
            self._keys.map_rows(change)
            self._values.map_rows(change)


__all__ = ["GrowingLayer", "is_made_by_ghost", "let_grow", "made_by_ghost"]
