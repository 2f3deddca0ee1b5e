# SPDX-License-Identifier: Apache-2.0
"""A session that decodes beside another one's prompt of 1,024 tokens, a 0.5B model: its longest gap
between two tokens, in units, and its tokens a second, of those alone. An entry's `tokens` say of
each when it came, in seconds from the prompt's begin, and how many ms after the one before; its
`tokens_alone` likewise, from the first."""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import generate, qwen  # noqa: E402
from private_daemon import running  # noqa: E402
from report import Entry, entry, report  # noqa: E402
from spawned import spawned  # noqa: E402

REPETITIONS = 3
UNIT = 0.020  # seconds, or a step where that takes longer (kernel/sched/queue.h)
SHORT_PROMPT, LONG_PROMPT = 16, 1024
ALONE = 40  # tokens
# More tokens than come before the prompt has ended.
BESIDE = {"fast": 400, "exact": 200}
FIRST = 5  # tokens that come before the other's prompt


class Times:
    """A streamer that notes when each token comes, and tells the first ones."""

    def __init__(self, told: Connection) -> None:
        self.told, self.times = told, list[float]()

    def put(self, value: Any) -> None:
        self.times.append(time.monotonic())
        if len(self.times) == FIRST + 1:  # the prompt is put first
            self.told.send("decodes")

    def end(self) -> None:
        pass


def client(commands: Connection, directory: str, numerics: str, seed: int) -> None:
    """Generates as it is told, and answers with the seconds at which tokens came, or at which the
    prompt began and had its first token."""
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = numerics
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    draw = torch.Generator().manual_seed(seed)
    short = torch.randint(3, 500, (1, SHORT_PROMPT), generator=draw)
    long = torch.randint(3, 500, (1, LONG_PROMPT), generator=draw)
    while (command := commands.recv()) is not None:
        begun = time.monotonic()
        if command == "prompt":
            generate(ghost, long, 1)
            assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
            commands.send([begun, time.monotonic()])
        else:
            times = Times(commands)
            generate(ghost, short, command, streamer=times)
            assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
            commands.send(times.times[1:])


class Pair:
    """One that decodes, and one that has a long prompt."""

    def __init__(self, stack: ExitStack, directory: str, numerics: str) -> None:
        self.tokens = BESIDE[numerics]
        self.decoder, self.prompt = (
            spawned(stack, client, directory, numerics, seed) for seed in range(2)
        )
        self.prompt.send("prompt")  # its plans are there before it is measured
        self.prompt.recv()
        self.alone()
        self.beside()

    def alone(self) -> list[float]:
        self.decoder.send(ALONE)
        assert self.decoder.recv() == "decodes"
        return list(self.decoder.recv())[FIRST:]

    def beside(self) -> tuple[list[float], float, float]:
        """When tokens came, and when the prompt began and ended."""
        self.decoder.send(self.tokens)
        assert self.decoder.recv() == "decodes"
        self.prompt.send("prompt")
        begun, ended = self.prompt.recv()
        return list(self.decoder.recv()), begun, ended


def rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


def points(times: list[float], begun: float) -> list[tuple[float, float]]:
    return [(b - begun, (b - a) * 1e3) for a, b in pairwise(times)]


def beside(name: str, pair: Pair) -> Iterator[Entry]:
    for _ in range(REPETITIONS):
        before = pair.alone()
        times, begun, ended = pair.beside()
        alone = before + pair.alone()
        assert ended < times[-1], "the prompt was longer than what was decoded beside it"
        step = statistics.median(b - a for a, b in pairwise(alone) if b - a < 1)
        # The gaps that the prompt has a part in.
        gaps = [b - a for a, b in pairwise(times) if b > begun and a < ended]
        counters = entry(
            name,
            ended - begun,
            worst_gap_units=max(gaps) / max(UNIT, step),
            rate_of_alone=len(gaps) / sum(gaps) / rate(before),
            step_ms=step * 1e3,
            worst_gap_ms=max(gaps) * 1e3,
        )
        drawn = {"tokens": points(times, begun), "tokens_alone": points(before, before[0])}
        yield {**counters, **drawn}


def main() -> None:
    import torch

    torch.manual_seed(1)
    with ExitStack() as stack:
        daemon = stack.enter_context(running())
        os.environ["DJINN_HOST"] = daemon.host
        directories: list[str] = []

        def directory() -> str:  # that nobody waits for who measures something else
            if not directories:
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bench."))
                qwen().save_pretrained(made)
                directories.append(made)
            return directories[0]

        def figure(numerics: str) -> Any:
            name = f"beside/prompt_{numerics}"
            return name, lambda: beside(name, Pair(stack, directory(), numerics))

        report(dict(figure(numerics) for numerics in ("fast", "exact")))


if __name__ == "__main__":
    main()
