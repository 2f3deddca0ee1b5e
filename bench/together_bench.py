# SPDX-License-Identifier: Apache-2.0
"""What several processes get of one model at once, each with its own session and fast numerics:
tokens a second of all, of one alone, in one run whose arms alternate. together/processes_N are of
one user and share steps, together/loops_N likewise with the loop over tokens in Python;
together/users_2, which needs root, are of two and have a worker each."""

import os
import pwd
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import generate, qwen  # noqa: E402
from other_user import User  # noqa: E402
from private_daemon import running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402
from spawned import spawned  # noqa: E402

REPETITIONS = 3
COUNTS = (2, 4, 8)
LOOPS = 2
PROMPT = 16
# Tokens of two generations: their difference is the loop alone. Eight prompts are read one after
# the other, and who ends last is alone for a while: of 72 tokens that was a tenth of the time.
SHORT, LONG = 8, 200


def client(commands: Connection, directory: str, seed: int, user: User | None, tier: int) -> None:
    import djinn  # noqa: F401  # what it opens is root's
    import transformers  # noqa: F401

    with user.acting() if user else nullcontext():
        generate_when_told(commands, directory, seed, tier)


def options_for(tier: int) -> dict[str, Any]:
    """So that generate() takes the tier: djinnd does not know a processor of the program's own."""
    import transformers

    class Nothing(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores

    processors = transformers.LogitsProcessorList([Nothing()])
    return {"logits_processor": processors} if tier == 1 else {}


def generate_when_told(commands: Connection, directory: str, seed: int, tier: int) -> None:
    """Answers each number of tokens with the seconds in which they were generated."""
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    ids = torch.randint(3, 500, (1, PROMPT), generator=torch.Generator().manual_seed(seed))
    options = options_for(tier)
    generate(ghost, ids, LONG, **options)  # its plans are there before it is measured
    assert djinn.explain(ghost)["tier"] == tier, djinn.explain(ghost)
    commands.send(0.0)
    while (tokens := commands.recv()) is not None:
        commands.send(seconds_of(lambda tokens=tokens: generate(ghost, ids, tokens, **options)))


class Clients:
    """Processes, of which some generate at once."""

    def __init__(
        self, stack: ExitStack, directory: str, users: list[User | None], tier: int
    ) -> None:
        self.pipes: list[Connection] = []
        for seed, user in enumerate(users):
            self.pipes.append(spawned(stack, client, directory, seed, user, tier))
            self.pipes[-1].recv()

    def seconds(self, count: int, tokens: int) -> list[float]:
        for pipe in self.pipes[:count]:
            pipe.send(tokens)
        return [float(pipe.recv()) for pipe in self.pipes[:count]]

    def rates(self, count: int) -> list[float]:
        """Tokens a second, of each of so many."""
        short, long = self.seconds(count, SHORT), self.seconds(count, LONG)
        return [(LONG - SHORT) / (b - a) for a, b in zip(short, long, strict=True)]


def at_once(name: str, clients: Clients, count: int) -> Iterator[Entry]:
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


@contextmanager
def with_clients(users: list[User | None], tier: int = 2, **options: Any) -> Iterator[Clients]:
    """Of a djinnd of their own, and a model that all of them may read."""
    import torch

    torch.manual_seed(1)
    with ExitStack() as stack:
        daemon = stack.enter_context(running(**options))
        os.environ["DJINN_HOST"] = daemon.host
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bench."))
        qwen().save_pretrained(directory)
        for path in (daemon.directory, Path(directory)):
            path.chmod(0o755)
        for path in Path(directory).iterdir():
            path.chmod(0o644)
        yield Clients(stack, directory, users, tier)


def processes(count: int) -> Iterator[Entry]:
    with with_clients([None] * count) as clients:
        yield from at_once(f"together/processes_{count}", clients, count)


def loops(count: int) -> Iterator[Entry]:
    with with_clients([None] * count, tier=1) as clients:
        yield from at_once(f"together/loops_{count}", clients, count)


def users() -> Iterator[Entry]:
    name = "together/users_2"
    if os.geteuid() != 0:
        yield {**entry(name, 0.0), "error_occurred": True, "error_message": "needs root"}
        return
    nobody = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup")
    with with_clients([None, nobody], socket_group="nogroup") as clients:
        yield from at_once(name, clients, 2)


def main() -> None:
    benchmarks: dict[str, Any] = {
        f"together/processes_{count}": partial(processes, count) for count in COUNTS
    }
    benchmarks[f"together/loops_{LOOPS}"] = partial(loops, LOOPS)
    report({**benchmarks, "together/users_2": users})


if __name__ == "__main__":
    main()
