# SPDX-License-Identifier: Apache-2.0
"""A client that is made to be killed: does one thing after the other and tells each before it
begins and while it goes on, one line each, so that its killer can choose a moment.

    visitor.py HOST SEED FILE MODEL

Does everything once in an order that the seed shuffles, all that it takes it keeps, and at the end
waits for its death. It prints `done` when there is nothing left to do.
"""

import random
import sys
from collections.abc import Callable

import djinn
import numpy as np

MATMULS = """srg 1 "matmuls"
input %x : float32[384, 384]
%a = aten::matmul(%x, %x)
%b = aten::matmul(%a, %x)
%c = aten::matmul(%b, %a)
%d = aten::add.Tensor(%c, %b)
output %a, %d
"""
TWICE = """srg 1 "twice"
input %x : float32[4096]
%y = aten::add.Tensor(%x, %x)
output %y
"""


def tell(what: str) -> None:
    print(what, flush=True)


class Visitor:
    def __init__(self, host: str, file: str, model: str) -> None:
        self.session = djinn.connect(host, "visitor", staging_bytes=2 << 20)
        self.file = file
        self.directory = model
        self.kept: list[object] = []

    def activities(self) -> list[Callable[[], None]]:
        return [self.load, self.generate, self.run, self.run_once, self.put, self.sequences]

    def load(self) -> None:
        self.kept.append(self.session.load(self.file))

    def generate(self) -> None:
        generator = djinn.Generator(self.session, self.directory)
        self.kept.append(generator)
        prompts = [[256, *b"A daemon "], [256, *b"The "]]
        options = {"max_new_tokens": 24, "stop_tokens": [], "temperature": 0.9, "seed": 3}
        generator.generate(prompts, on_token=self.tell_some, **options)

    @staticmethod
    def tell_some(token: djinn.Token) -> None:
        if token.index % 6 == 0:
            tell("token")

    def run(self) -> None:
        program = self.session.define(MATMULS)
        x = np.ones((384, 384), np.float32)
        for _ in range(4):
            tell("runs")
            self.kept.append(program(x=x, outputs="ref"))

    def run_once(self) -> None:
        for _ in range(4):
            tell("runs once")
            self.kept.append(self.session.run_once(TWICE, x=np.ones(4096, np.float32)))

    def put(self) -> None:
        for _ in range(8):
            tell("puts")
            self.kept.append(self.session.put(np.full(200_000, 7, np.uint8)))

    def sequences(self) -> None:
        for rows in (1, 3):
            tell("makes a sequence group")
            self.kept.append(
                self.session.sequence(
                    rows, layers=5, kv_heads=2, head_dim=32, dtype="float32", capacity=256
                )
            )


def main() -> None:
    host, seed, file, model = sys.argv[1:]
    tell("connects")
    visitor = Visitor(host, file, model)
    activities = visitor.activities()
    random.Random(int(seed)).shuffle(activities)
    for activity in activities:
        tell(activity.__name__)
        activity()
    tell("done")
    sys.stdin.read()


if __name__ == "__main__":
    main()
