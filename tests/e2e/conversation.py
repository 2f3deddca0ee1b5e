# SPDX-License-Identifier: Apache-2.0
"""A conversation with the byte model, a step at a time: what it says, all bits of it."""

from pathlib import Path

import djinn
import numpy as np
from private_daemon import Daemon

ROWS, PROMPT, STEPS = 4, 9, 3
VOCABULARY = 257
# Enough for its logits, and so much that a lane's heap is little beside it.
STAGING_BYTES = 16 << 20


class Talk:
    """A conversation: each turn goes on where the last one ended. It ends with its session."""

    def __init__(self, session: djinn.Session, model: Path) -> None:
        self.session = session
        generator = djinn.Generator(self.session, model)
        self.programs = {
            phase: self.session.define(generator.source(phase, all_logits=True), generator.model)
            for phase in ("prefill", "decode")
        }
        self.sequence = generator.sequence(rows=ROWS, capacity=512, reorderable=True)
        self.random = np.random.default_rng(7)
        self.past = 0

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def step(self, tokens: int) -> bytes:
        ids = self.random.integers(0, VOCABULARY, (ROWS, tokens))
        program = self.programs["decode" if self.past else "prefill"]
        positions = np.tile(np.arange(self.past, self.past + tokens), (ROWS, 1))
        logits = program(input_ids=ids, position_ids=positions, sequence=self.sequence)["logits"]
        self.past += tokens
        return bytes(logits.tobytes())

    def turn(self) -> list[bytes]:
        """What the model says to some tokens, all bits of it."""
        if self.past:
            self.sequence.reorder([1, 0, 3, 2])
        return [self.step(1 if self.past else PROMPT) for _ in range(STEPS)]


def talk_to(host: Daemon, model: Path, name: str) -> Talk:
    """A conversation in a session of its own."""
    return Talk(host.connect(name, staging_bytes=STAGING_BYTES), model)
