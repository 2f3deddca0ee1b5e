# SPDX-License-Identifier: Apache-2.0
"""What a token takes beside 120 sessions that submit nothing, of what it takes alone: a small
model, which the caches hold, so that it is the worker's time that is compared. The arms alternate
in one worker, since the others come and go. session_bench.cc has the same of an empty run."""

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import both, generate, token_seconds  # noqa: E402
from private_daemon import THREADS, Daemon, running, wait_until  # noqa: E402
from report import Entry, entry, report  # noqa: E402
from spawned import spawned  # noqa: E402

REPETITIONS = 9
OTHERS = 120
CONTEXT = 32


def model() -> Any:
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=4096,
        )
    )


def others(commands: Connection, host: str) -> None:
    """Has as many sessions as it is told. Each has submitted something once, and nothing since."""
    import djinn
    import numpy

    while (count := commands.recv()) is not None:
        with ExitStack() as stack:
            for number in range(count):
                session = stack.enter_context(djinn.connect(host, f"idle {number}"))
                session.put(numpy.zeros(1, "float32")).numpy()
            commands.send(count)
            commands.recv()
        commands.send(0)


class Others:
    def __init__(self, stack: ExitStack, daemon: Daemon) -> None:
        self.daemon = daemon
        self.pipe = spawned(stack, others, daemon.host)

    def there(self) -> int:
        return sum(one["name"].startswith("idle") for one in self.daemon.observer.sessions())

    def come(self) -> None:
        self.pipe.send(OTHERS)
        assert self.pipe.recv() == OTHERS

    def leave(self) -> None:
        self.pipe.send("leave")
        self.pipe.recv()
        wait_until(lambda: self.there() == 0, "they are gone")


def token(daemon: Daemon) -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(3, 500, (1, CONTEXT))
    djinn.config.numerics = "fast"
    with both(model) as (_, ghost), ExitStack() as stack:
        idle = Others(stack, daemon)
        generate(ghost, ids, 2)
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        before = token_seconds(ghost, ids)
        for _ in range(REPETITIONS):
            idle.come()
            beside = token_seconds(ghost, ids)
            idle.leave()
            after = token_seconds(ghost, ids)
            yield entry("idle/token", beside, of_alone=beside / statistics.mean([before, after]))
            before = after


def main() -> None:
    import torch

    with running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        torch.set_num_threads(THREADS)
        report({"idle/token": lambda: token(daemon)})


if __name__ == "__main__":
    main()
