# SPDX-License-Identifier: Apache-2.0
"""A bystander of a siege: computes what it knows the answer to, over and over.

    bystanders.py HOST SECONDS MODEL

All that it has in djinnd's memory is full of one byte, which no attacker sends. It prints one line
of JSON when its time is over: rounds, the longest round, requests that did not fit into memory
(which attackers may fill up to their quotas), what was wrong.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import djinn
import numpy as np
from attackers import PROMPT, SECRET
from conversation import STAGING_BYTES, Talk

ELEMENTS = 1 << 16
ROUND = """srg 1 "round"
input %x : float32[65536]
%a = aten::roll(%x, [5], [0])
%b = aten::mul.Tensor(%a, 1.0)
%c = aten::cat([%b, %x], 0)
output %b, %c
"""
TURNS = 100  # of a conversation, before its capacity is full
GREEDY = {"max_new_tokens": 12, "stop_tokens": []}


class Twins:
    """Two conversations that say the same, one after the other: each is idle while the other
    speaks, and may lie on disk."""

    def __init__(self, host: str, model: str) -> None:
        self.host, self.model = host, Path(model)
        self.talks: list[Talk] = []
        self.turns = TURNS

    def renew(self) -> None:
        for talk in self.talks:
            talk.session.close()
        self.talks, self.turns = [self._talk(), self._talk()], 0

    def _talk(self) -> Talk:
        return Talk(djinn.connect(self.host, "talk", staging_bytes=STAGING_BYTES), self.model)

    def turn(self) -> list[str]:
        if self.turns == TURNS:
            self.renew()
        one, other = self.talks
        self.turns += 1
        return [] if one.turn() == other.turn() else [f"other logits in turn {self.turns}"]


class Bystander:
    def __init__(self, host: str, model: str) -> None:
        self.twins = Twins(host, model)
        self.session = djinn.connect(host, "bystander", staging_bytes=2 << 20)
        self.program = self.session.define(ROUND)
        self.x = np.full(4 * ELEMENTS, SECRET, np.uint8).view(np.float32)
        self.kept = self.session.put(self.x)
        self.generators = [
            djinn.Generator(self.session, model, numerics=numerics)
            for numerics in ("exact", "fast", "fast")  # attackers' steps join the fast ones
        ]
        self.expected = self.said()

    def said(self) -> list[djinn.Generated]:
        return [each.generate([PROMPT], **GREEDY) for each in self.generators]

    def round(self) -> list[str]:
        wrong = []
        for name, array in self.program(x=self.x).items():
            if array.tobytes() != bytes([SECRET]) * array.nbytes:
                wrong.append(f"other bytes in {name}")
        if self.kept.numpy().tobytes() != self.x.tobytes():
            wrong.append("other bytes in a ref that was kept")
        if self.said() != self.expected:
            wrong.append("other tokens")
        return wrong + self.twins.turn()


def main() -> None:
    host, seconds, model = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    rounds, longest, refused, findings = 0, 0.0, 0, []
    try:
        bystander = Bystander(host, model)
        while time.monotonic() < end and len(findings) < 20:
            start = time.monotonic()
            try:
                findings += bystander.round()
            except djinn.ResourceError:
                refused, bystander.twins.turns = refused + 1, TURNS  # they may differ by a turn
            rounds, longest = rounds + 1, max(longest, time.monotonic() - start)
    except djinn.Error as error:
        findings.append(f"{type(error).__name__}: {error}")
    said = {"rounds": rounds, "longest_s": round(longest, 2), "refused": refused}
    print(json.dumps({**said, "findings": findings}))


if __name__ == "__main__":
    main()
