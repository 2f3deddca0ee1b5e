# SPDX-License-Identifier: Apache-2.0
"""Workers of several users take turns at the cores, and none of them can keep another from them."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import djinn
import numpy as np
import pytest
from long_runs import matmuls
from private_daemon import Daemon, running, stopped, wait_until
from test_sharing import FIRST, GROUP, SECOND

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users")

RUNS = 6
PRODUCTS = 40
MINUTES = matmuls(6000)


@pytest.fixture
def host() -> Iterator[Daemon]:
    with running("--hang-timeout-ms", "600000", socket_group=GROUP) as one:
        one.directory.chmod(0o755)
        yield one


def worker_of(host: Daemon, name: str) -> dict[str, Any]:
    return next(worker for worker in host.status()["workers"] if worker["owner"] == name)


@contextmanager
def stopped_in_its_turn(host: Daemon, session: djinn.Session) -> Iterator[None]:
    """FIRST's worker, amid a run of the session, which may have waited for memory before."""
    keeper = worker_of(host, FIRST.name)["pid"]
    while True:
        with stopped([keeper]):
            if any(r["running"] for r in host.observer.sessions() if r["id"] == session.id):
                yield
                return


def sessions_of_two(host: Daemon) -> tuple[djinn.Session, djinn.Session]:
    with FIRST.acting():
        first = host.connect("first")
    with SECOND.acting():
        return first, host.connect("second")


def test_two_users_that_compute_at_once_take_turns(host: Daemon) -> None:
    x = np.eye(640, dtype=np.float32) + np.float32(1e-3)

    def compute(session: djinn.Session) -> list[bytes]:
        program = session.define(matmuls(PRODUCTS))
        return [program(x=x)[f"y{PRODUCTS}"].tobytes() for _ in range(RUNS)]

    first, second = sessions_of_two(host)
    with first, second, ThreadPoolExecutor() as pool:

        def waited_ms() -> int:
            return sum(worker_of(host, user.name)["turn_ms"] for user in (FIRST, SECOND))

        alone = compute(first)
        before = waited_ms()

        def compute_both() -> bool:  # on a busy machine one may have ended before the next begins
            assert list(pool.map(compute, (first, second))) == [alone, alone]
            return waited_ms() > before

        wait_until(compute_both, "one has waited for the other")


def test_a_worker_that_keeps_its_turn_holds_nobody_up(host: Daemon) -> None:
    x = np.eye(640, dtype=np.float32)
    first, second = sessions_of_two(host)
    with first, second, ThreadPoolExecutor() as pool:
        program = second.define(matmuls(PRODUCTS))
        program(x=x)
        long = first.define(MINUTES)
        run = pool.submit(long, x=x)
        with stopped_in_its_turn(host, first):
            overruns = worker_of(host, SECOND.name)["overruns"]
            for _ in range(RUNS):
                program(x=x)
            # It waited for the one that stands still once.
            assert worker_of(host, SECOND.name)["overruns"] == overruns + 1
        assert not run.done()
        first.close()


def test_a_worker_that_dies_in_its_turn_leaves_it(host: Daemon) -> None:
    x = np.eye(640, dtype=np.float32)
    first, second = sessions_of_two(host)
    with first, second, ThreadPoolExecutor() as pool:
        program = second.define(matmuls(PRODUCTS))
        right = program(x=x)[f"y{PRODUCTS}"].tobytes()
        run = pool.submit(first.define(matmuls(10 * PRODUCTS)), x=x)
        wait_until(
            lambda: run.done() or any(one["running"] for one in host.observer.sessions()),
            "the long run has begun",
        )
        keeper = worker_of(host, FIRST.name)["pid"]
        os.kill(keeper, 9)
        assert program(x=x)[f"y{PRODUCTS}"].tobytes() == right
        assert np.array_equal(run.result()[f"y{10 * PRODUCTS}"], x)
