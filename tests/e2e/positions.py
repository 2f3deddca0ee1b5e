# SPDX-License-Identifier: Apache-2.0
"""What a generation has at each position, as digests: so that generations can be compared."""

import hashlib
from typing import Any


def positions_of(said: Any, cache: Any, rows: int | None = None) -> list[bytes]:
    """Of each position behind the first the tokens, and the keys and values of the one before, of
    all layers and of all rows or of the first ones. said: ids, [rows, tokens], on the CPU. The
    last token's keys and values were never wanted."""
    import torch

    layers = [one.cpu()[:rows] for layer in cache.layers for one in (layer.keys, layer.values)]
    kept = torch.cat([one.movedim(-2, 0).flatten(1) for one in layers], 1)[: said.shape[1] - 1]
    columns = zip(
        said[:rows, 1:].T.tolist(), kept.contiguous().view(torch.uint8).numpy(), strict=True
    )
    return [hashlib.blake2b(b"%a " % tokens + one.tobytes()).digest() for tokens, one in columns]
