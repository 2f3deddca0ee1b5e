# SPDX-License-Identifier: Apache-2.0
"""A worker that a quota leaves a part of a processor does not hang for that; and one that hangs is
found all the same. Lanes have no more threads than a quota has processors."""

import os
import time
from contextlib import suppress
from pathlib import Path

import djinn
import numpy as np
import pytest
from cpu_group import left_only
from private_daemon import Daemon, children_named, running, wait_until

pytestmark = pytest.mark.ci

TIMEOUT_S = 1.0
HANGS = ("--hang-timeout-ms", str(int(1000 * TIMEOUT_S)))


def product(size: int) -> str:
    """One operator, whose time grows with the cube of the size."""
    return (
        f'srg 1 "product"\ninput %x : float32[{size}]\n%m = aten::expand(%x, [{size}, {size}])\n'
        "%y = aten::mm(%m, %m)\n%z = aten::sum(%y)\noutput %z\n"
    )


def computed_s(pid: int) -> float:
    """What the process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def product_of(session: djinn.Session, daemon: Daemon, least_s: float) -> tuple[djinn.Program, int]:
    """One that computes for so long at least, and half as long again at most; and its size."""
    size = 512
    while True:
        program = session.define(product(size))
        program(x=np.ones(size, np.float32))
        before_s = computed_s(daemon.worker_pid())
        program(x=np.ones(size, np.float32))
        if computed_s(daemon.worker_pid()) - before_s >= least_s:
            return program, size
        size = size * 9 // 8


def test_an_operator_that_takes_longer_for_want_of_a_processor_is_no_hang() -> None:
    with running(*HANGS, threads=1) as daemon, daemon.connect("throttled") as session:
        program, size = product_of(session, daemon, 0.45 * TIMEOUT_S)
        x = np.ones(size, np.float32)
        worker = daemon.worker()
        with left_only(20, worker["pid"]):
            begun = time.monotonic()
            assert program(x=x)["z"] == pytest.approx(size**3, rel=1e-5)
            assert time.monotonic() - begun > 2 * TIMEOUT_S, "it was held up for too little"
        assert daemon.worker()["pid"] == worker["pid"]


def test_an_operator_that_computes_for_too_long_is_refused_however_slowly() -> None:
    size = 6144
    with running(*HANGS, threads=1) as daemon, daemon.connect("hasty") as session:
        program = session.define(product(size))
        with left_only(50, daemon.worker_pid()):
            refusal = r"The operator aten::mm ran longer than 1 s"
            with pytest.raises(djinn.Error, match=refusal):
                program(x=np.ones(size, np.float32))
        assert daemon.worker()["restarts"] == 1


def lanes_threads(daemon: Daemon) -> set[str]:
    """As many as djinnd has told its workers, those in advance included."""
    told: set[str] = set()

    def is_there() -> bool:
        for worker in children_named(daemon.process.pid, "djinn-worker"):
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):  # it ends
                words = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
                told.add(words[words.index("--threads") + 1])
        return bool(told)

    wait_until(is_there, "there is a worker")
    return told


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ONE PROCESSOR IS NO MORE THAN 1.5")
def test_a_lane_has_by_default_no_more_threads_than_the_quota_has_processors() -> None:
    with left_only(150, os.getpid()), running(threads=None) as daemon:
        assert lanes_threads(daemon) == {"1"}
        with daemon.connect("one of them") as session:
            program = session.define(product(512))
            assert program(x=np.ones(512, np.float32))["z"] == 512**3
