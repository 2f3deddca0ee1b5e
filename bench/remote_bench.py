# SPDX-License-Identifier: Apache-2.0
"""A djinnd as if it were on another machine, beside the same one here: what a streamed token takes
and how many bytes cross for it, what an empty run takes when all have been asleep. The arms
alternate, each in a process of its own, with djinn-reach and djinn-gate on the same cores."""

import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import generate, gpt2  # noqa: E402
from private_daemon import Daemon, running  # noqa: E402
from report import Entry, entry, report, seconds_of, token_seconds_of  # noqa: E402
from spawned import spawned  # noqa: E402

REPETITIONS = 5
RELAY = ROOT / "tests" / "e2e" / "gate_relay.py"
CONTEXT = 32
BYTES_TOKENS = 100  # of a generation whose bytes are counted, less those of one of half as many
RUNS = 300


def generator(commands: Connection, host: str, directory: str) -> None:
    """Answers each number of tokens with the seconds that it took; 0: with those of a token."""
    os.environ["DJINN_HOST"] = host
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    ids = torch.randint(3, 500, (1, CONTEXT), generator=torch.Generator().manual_seed(1))
    generate(ghost, ids, BYTES_TOKENS)
    assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
    commands.send(0.0)
    while (tokens := commands.recv()) is not None:
        if tokens == 0:
            commands.send(token_seconds_of(lambda count: generate(ghost, ids, count)))
        else:
            commands.send(seconds_of(lambda tokens=tokens: generate(ghost, ids, tokens)))


def runner(commands: Connection, host: str) -> None:
    """Answers anything with the median seconds of a small run, begun when both sides are asleep."""
    import djinn
    import numpy

    source = 'srg 1 "copy"\ninput %x : float32[4]\n%y = aten::clone(%x)\noutput %y\n'
    with djinn.connect(host, "runs") as session:
        program = session.define(source)
        x = numpy.zeros(4, numpy.float32)
        pause = time.sleep
        commands.send(0.0)
        while commands.recv() is not None:
            times = []
            for _ in range(RUNS):
                pause(0.001)
                times.append(seconds_of(lambda: program(x=x)))
            commands.send(statistics.median(times))


def asked(pipe: Connection, what: Any) -> float:
    pipe.send(what)
    return float(pipe.recv())


def tokens(daemon: Daemon) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory, ExitStack() as stack:
        gpt2().save_pretrained(directory)
        counts = Path(directory) / "counts"
        relay = f"exec:exec {sys.executable} {RELAY} {daemon.near_host} --counts {counts}"
        hosts = {"near": daemon.near_host, "far": daemon.far_host, "counted": relay}
        arms = {name: spawned(stack, generator, host, directory) for name, host in hosts.items()}
        for arm in arms.values():
            arm.recv()

        def crossed(count: int) -> int:
            before = sum(struct.unpack("QQ", counts.read_bytes()))
            asked(arms["counted"], count)
            return sum(struct.unpack("QQ", counts.read_bytes())) - before

        for _ in range(REPETITIONS):
            near, far = asked(arms["near"], 0), asked(arms["far"], 0)
            extra = crossed(BYTES_TOKENS) - crossed(BYTES_TOKENS // 2)
            yield entry(
                "remote/token",
                far,
                of_near=far / near,
                bytes=extra / (BYTES_TOKENS - BYTES_TOKENS // 2),
            )


def runs(daemon: Daemon) -> Iterator[Entry]:
    with ExitStack() as stack:
        arms = [spawned(stack, runner, host) for host in (daemon.near_host, daemon.far_host)]
        for arm in arms:
            arm.recv()
        for _ in range(REPETITIONS):
            near, far = (asked(arm, "runs") for arm in arms)
            yield entry("remote/asleep", far, near_us=near * 1e6, far_us=far * 1e6)


def main() -> None:
    with running() as daemon:
        assert daemon.far_host
        report({"remote/token": lambda: tokens(daemon), "remote/asleep": lambda: runs(daemon)})


if __name__ == "__main__":
    main()
