# SPDX-License-Identifier: Apache-2.0
"""A djinnd as if it were on another machine, beside the same one here: what a streamed token takes
and how many bytes cross for it, what an empty run takes when all have been asleep, through the
gate's standard input and output, and over TLS. The arms alternate, each in a process of its own,
with djinn-reach and djinn-gate on the same cores."""

import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from counted_wire import CountedWire  # noqa: E402
from gates import door  # noqa: E402
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


Counted = tuple[dict[str, str], Callable[[], int]]


def by_stdio(daemon: Daemon, folder: Path, _: ExitStack) -> Counted:
    """Where the arms go, and how many bytes have crossed for the one that is counted."""
    counts = folder / "counts"
    relay = f"exec:exec {sys.executable} {RELAY} {daemon.near_host} --counts {counts}"
    hosts = {"near": daemon.near_host, "far": daemon.far_host, "counted": relay}
    return hosts, lambda: sum(struct.unpack("QQ", counts.read_bytes()))


def by_tls(daemon: Daemon, folder: Path, stack: ExitStack) -> Counted:
    """Likewise, with what TLS adds."""
    gate = stack.enter_context(door(folder, daemon.near_host))
    wire = stack.enter_context(closing(CountedWire(gate.port)))
    gate.enrol("far", "far")
    gate.enrol("counted", "counted", wire.port)
    hosts = {"near": daemon.near_host, "far": "djinn://far", "counted": "djinn://counted"}
    return hosts, lambda: wire.bytes


Carrier = Callable[[Daemon, Path, ExitStack], Counted]


def tokens(name: str, daemon: Daemon, carrier: Carrier) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory, ExitStack() as stack:
        gpt2().save_pretrained(directory)
        hosts, crossed = carrier(daemon, Path(directory), stack)
        arms = {name: spawned(stack, generator, host, directory) for name, host in hosts.items()}
        for arm in arms.values():
            arm.recv()

        def crossed_for(count: int) -> int:
            before = crossed()
            asked(arms["counted"], count)
            return crossed() - before

        for _ in range(REPETITIONS):
            near, far = asked(arms["near"], 0), asked(arms["far"], 0)
            extra = crossed_for(BYTES_TOKENS) - crossed_for(BYTES_TOKENS // 2)
            yield entry(
                name,
                far,
                of_near=far / near,
                bytes=extra / (BYTES_TOKENS - BYTES_TOKENS // 2),
            )


def runs(name: str, daemon: Daemon, carrier: Carrier) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory, ExitStack() as stack:
        hosts, _ = carrier(daemon, Path(directory), stack)
        arms = [spawned(stack, runner, hosts[where]) for where in ("near", "far")]
        for arm in arms:
            arm.recv()
        for _ in range(REPETITIONS):
            near, far = (asked(arm, "runs") for arm in arms)
            yield entry(name, far, near_us=near * 1e6, far_us=far * 1e6)


def main() -> None:
    with running("--gate-socket") as daemon:
        assert daemon.far_host
        benchmarks: dict[str, Callable[[], Iterator[Entry]]] = {}
        for end, carrier in (("", by_stdio), ("_tls", by_tls)):
            for what, measure in (("token", tokens), ("asleep", runs)):
                name = f"remote/{what}{end}"
                benchmarks[name] = partial(measure, name, daemon, carrier)
        report(benchmarks)


if __name__ == "__main__":
    main()
