# SPDX-License-Identifier: Apache-2.0
"""Binding blocks of generations that lie: ipc/binding.h's GenerateBlock, as bytes in staging."""

import random
import struct
from dataclasses import dataclass

RUN_AT, PROMPT_AT, BLOCK_BYTES_MAX = 16384, 8192, 4096  # in staging
HEAD = "<QQQQIIIIQQIIIiIfIfffQQIIIIQII"
PROGRAMS = "<QQ"  # a block begins with those of the prompt and of a token
EDGES = (0, 1, 2**31, 2**63, 2**64 - 1)
TOKENS = (-1, 258, 2**31 - 1, -(2**31))  # which no vocabulary has
WORDS = (256, 84, 104, 32)
LIES = (
    *("programs", "late", "extend", "sequence", "rows", "prompt", "room", "draws", "penalty"),
    *("padding", "tokens", "pad", "offset"),
)


@dataclass
class Group:
    """A sequence group of the liar's own."""

    index: int
    generation: int
    rows: int


def lying_block(r: random.Random, programs: tuple[int, int], group: Group) -> tuple[bytes, bytes]:
    """A block with one lie at most, and the bytes of its prompt."""
    lie = r.choice((*LIES, "none"))
    prefill, decode = programs

    def lying(about: str, lies: tuple[float, ...], truth: float) -> float:
        return r.choice(lies) if lie == about else truth

    tokens = r.choice((1, 2, 3, 9))
    stops = r.choice(([], [], [32, 101, 116, 97, 111]))  # some rows end before the others
    ids = [r.choice(WORDS) for _ in range(group.rows * tokens)]
    if lie == "tokens":
        ids[r.randrange(len(ids))] = r.choice(TOKENS)
    head = struct.pack(
        HEAD,
        *(lying("programs", (decode, *EDGES), prefill), lying("programs", (prefill, 7), decode)),
        *(lying("late", (decode, prefill, 2**64 - 1), 0), lying("late", (3, *EDGES), 0)),
        *(group.index, int(lying("sequence", (0, group.generation + 1), group.generation))),
        *(int(lying("rows", (0, 32, 33, group.rows + 1), group.rows)), tokens),
        *(PROMPT_AT, lying("prompt", (0, 2**40, 2**64 - 1), 4 * len(ids))),
        *(r.choice((0, 0, 20)), int(lying("room", (1000, 2**20), r.choice((20, 40)))), len(stops)),
        int(lying("pad", TOKENS, 257)),
        *(int(lying("draws", (0,), 1)), lying("draws", (1e-40, 1e30, 0.0, -1.0), 1.0)),
        *(int(lying("draws", (0, 1, 2**32 - 1), 0)), lying("draws", (0.0, 1e-30), 1.0)),
        *(lying("draws", (1.0, 0.5), 0.0), lying("penalty", (1e-38, 1e38, 1.3), 1.0)),
        *(r.getrandbits(64), lying("offset", EDGES, 0), 0, 0, 0, 0),
        *(lying("extend", (prefill, decode, *EDGES), 0), 0, 0),
    )
    padding = [int(lying("padding", (1, tokens, 2**32 - 1), 0)) for _ in range(group.rows)]
    rest = [struct.pack("<II", one, 0) for one in padding]
    rest += [struct.pack("<iI", one, 0) for one in stops]
    return head + b"".join(rest), struct.pack(f"<{len(ids)}i", *ids)
