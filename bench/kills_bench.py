# SPDX-License-Identifier: Apache-2.0
"""What a session pays for another of its user whose runs end the worker, time and again: the
neighbour runs a small program without a pause, and the worker is killed ten times in the other's
runs."""

import os
import signal
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
    while len(killed) < KILLS:
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


if __name__ == "__main__":
    report({"kills/neighbour": kills})
