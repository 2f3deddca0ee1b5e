# SPDX-License-Identifier: Apache-2.0
"""What the death of a worker costs. kills/neighbour: a session pays for another of its user whose
runs end the worker, time and again; it runs a small program without a pause, and the worker is
killed ten times in the other's runs. kills/generation: a generation whose worker is killed pauses
before its next token."""

import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

import djinn  # noqa: E402
import numpy as np  # noqa: E402
from private_daemon import Daemon, repeated, running  # noqa: E402
from report import Entry, entry, report  # noqa: E402

REPETITIONS = 3
KILLS = 10
SIZE, STEPS = 512, 400  # of the culprit's matrices, and how many are multiplied in a run
LOOK_S = 0.001
PATIENCE_S = 120
TOKENS_A_KILL = 16

SMALL = """srg 1 "small"
input %x : float32[16]
%y = aten::mul.Scalar(%x, 3)
output %y
"""


def long_program() -> str:
    lines = [f"%y{i + 1} = aten::mm(%y{i}, %y0)" for i in range(STEPS)]
    head = f'srg 1 "long"\ninput %y0 : float32[{SIZE}, {SIZE}]'
    return "\n".join([head, *lines, f"output %y{STEPS}"]) + "\n"


def kill_in_runs(daemon: Daemon, culprit: int) -> list[float]:
    """When: each time in a run of the culprit's, and each time another worker."""
    killed: dict[int, float] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(killed) < KILLS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {KILLS} workers {len(killed)} were met in a run")
        worker = daemon.worker()
        runs = any(r["running"] for r in daemon.observer.sessions() if r["id"] == culprit)
        if runs and worker["state"] == "ready" and worker["pid"] not in killed:
            killed[worker["pid"]] = time.monotonic()
            os.kill(worker["pid"], signal.SIGKILL)
        time.sleep(LOOK_S)
    return list(killed.values())


def kills() -> Iterator[Entry]:
    x, v = np.eye(SIZE, dtype=np.float32), np.arange(16, dtype=np.float32)
    for _ in range(REPETITIONS):
        with running() as daemon, daemon.connect("culprit") as bad, daemon.connect("good") as good:
            long, small = bad.define(long_program()), good.define(SMALL)
            rounds: list[tuple[float, float]] = []

            def try_long(long: Any = long) -> None:
                with suppress(djinn.LostError):  # after three deaths
                    long(y0=x)

            def run_small(small: Any = small, rounds: Any = rounds) -> None:
                begun = time.monotonic()
                assert np.array_equal(small(x=v)["y"], v * 3)
                rounds.append((begun, time.monotonic()))

            with repeated(run_small), repeated(try_long):
                times = kill_in_runs(daemon, bad.id)
            met = [
                ended - begun for begun, ended in rounds if any(begun <= t < ended for t in times)
            ]
        yield entry("kills/neighbour", sum(met), lost_s=sum(met), longest_s=max(met))


def longest_gap(stamps: list[float], killed: float) -> float:
    """Tokens that were on their way when the worker died come before the pause."""
    after = [stamp for stamp in stamps if stamp > killed][:3]
    return max(b - a for a, b in itertools.pairwise([killed, *after]))


def generations() -> Iterator[Entry]:
    with running() as daemon, daemon.connect("writer") as session:
        generator = djinn.Generator(session, ROOT / "models" / "bytes")
        for _ in range(REPETITIONS):
            stamps: list[float] = []
            killed: list[float] = []

            def take(_: djinn.Token, stamps: Any = stamps, killed: Any = killed) -> None:
                stamps.append(time.monotonic())
                if len(killed) == KILLS or len(stamps) < (len(killed) + 1) * TOKENS_A_KILL:
                    return
                worker = daemon.worker()
                if worker["state"] == "ready":
                    killed.append(time.monotonic())
                    os.kill(worker["pid"], signal.SIGKILL)

            generator.generate(
                [[256, *b":worker: /w"]],
                on_token=take,
                max_new_tokens=(KILLS + 2) * TOKENS_A_KILL,
                stop_tokens=[],
            )
            pauses = [longest_gap(stamps, at) for at in killed]
            median = statistics.median(pauses)
            yield entry("kills/generation", median, pause_s=median, longest_s=max(pauses))


if __name__ == "__main__":
    report({"kills/neighbour": kills, "kills/generation": generations})
