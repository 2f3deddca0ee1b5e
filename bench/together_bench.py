# SPDX-License-Identifier: Apache-2.0
"""What several processes of one user get of one model at once, each with its own session and fast
numerics: tokens a second of all, of one alone, in one run whose arms alternate."""

import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import generate, qwen  # noqa: E402
from private_daemon import running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 3
COUNTS = (2, 8)
PROMPT = 16
SHORT, LONG = 8, 72  # tokens of two generations: their difference is the loop alone


def client(commands: Connection, directory: str, seed: int) -> None:
    """Answers each number of tokens with the seconds in which they were generated."""
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    ids = torch.randint(3, 500, (1, PROMPT), generator=torch.Generator().manual_seed(seed))
    generate(ghost, ids, LONG)  # its plans are there before it is measured
    assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
    commands.send(0.0)
    while (tokens := commands.recv()) is not None:
        commands.send(seconds_of(lambda tokens=tokens: generate(ghost, ids, tokens)))


class Clients:
    """Processes, of which some generate at once."""

    def __init__(self, stack: ExitStack, directory: str, count: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        for seed in range(count):
            here, there = spawning.Pipe()
            process = spawning.Process(target=client, args=(there, directory, seed), daemon=True)
            process.start()
            stack.callback(process.join, 30)
            stack.callback(here.send, None)
            self.pipes.append(here)
            here.recv()

    def seconds(self, count: int, tokens: int) -> list[float]:
        for pipe in self.pipes[:count]:
            pipe.send(tokens)
        return [float(pipe.recv()) for pipe in self.pipes[:count]]

    def rates(self, count: int) -> list[float]:
        """Tokens a second, of each of so many."""
        short, long = self.seconds(count, SHORT), self.seconds(count, LONG)
        return [(LONG - SHORT) / (b - a) for a, b in zip(short, long, strict=True)]


def processes(name: str, clients: Clients, count: int) -> Iterator[Entry]:
    for _ in range(REPETITIONS):
        before = clients.rates(1)[0]
        rates = clients.rates(count)
        alone = statistics.mean([before, clients.rates(1)[0]])
        yield entry(
            name,
            count / sum(rates),
            of_one=sum(rates) / alone,
            slowest_of_mean=min(rates) / statistics.mean(rates),
        )


def main() -> None:
    import torch

    torch.manual_seed(1)
    with ExitStack() as stack:
        daemon = stack.enter_context(running())
        os.environ["DJINN_HOST"] = daemon.host
        made: list[Clients] = []

        def clients() -> Clients:  # that nobody waits for who measures something else
            if not made:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bench."))
                qwen().save_pretrained(directory)
                made.append(Clients(stack, directory, max(COUNTS)))
            return made[0]

        def figure(count: int) -> Any:
            name = f"together/processes_{count}"
            return name, lambda: processes(name, clients(), count)

        report(dict(figure(count) for count in COUNTS))


if __name__ == "__main__":
    main()
