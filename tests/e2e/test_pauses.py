# SPDX-License-Identifier: Apache-2.0
"""A long run is paused between two of its operators, so that its user's other sessions go on; what
it gives, and what they give, is what each gives alone, whatever happens at a pause."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl
from long_runs import matmuls
from private_daemon import Daemon, running, stopped, wait_until

PROMPT = [256, *b"The lane "]
SMALL = 'srg 1 "small"\ninput %x : float32[4]\n%y = aten::neg(%x)\noutput %y\n'
# A run of so many products is as long as many slices, and sentences of so few tokens end in it.
SIDE, PRODUCTS, TOKENS = 448, 100, 20
MINUTES = matmuls(10_000, SIDE)
# x = x + 0.001 * (x @ x), in place, so many times.
UPDATES = 80
UPDATE = (
    f'srg 1 "update"\ninput %x : float32[{SIDE}, {SIDE}]\n'
    + "\n".join(
        f"%p{i} = aten::matmul(%x, %x)\n%u{i} = aten::add_.Tensor(%x, %p{i}, alpha=0.001)"
        for i in range(UPDATES)
    )
    + "\n%y = aten::sum(%x)\noutput %y\n"
)
# A reflection: however often it is multiplied by itself, no number gets large or small.
NORMAL = np.arange(SIDE) % 7 - 2.5
X = (np.eye(SIDE) - 2 * np.outer(NORMAL, NORMAL) / NORMAL.dot(NORMAL)).astype(np.float32)


class Lane:
    """A session with long runs, and one that generates, of one user."""

    def __init__(self, daemon: Daemon, model: Path, products: int = PRODUCTS) -> None:
        self.daemon = daemon
        self.long = daemon.connect("long")
        self.other = daemon.connect("other")
        self.generator = djinn.Generator(self.other, model)
        self.program = self.long.define(matmuls(products, SIDE))
        self.small = self.other.define(SMALL)
        self.tokens = self.generate()
        self.result = self.run()
        self.steps = 0  # of the other session, when its worker was killed last

    def run(self) -> bytes:
        return bytes(next(iter(self.program(x=X).values())).tobytes())

    def generate(self, tokens: int = TOKENS) -> list[int]:
        return self.generator.generate([PROMPT], max_new_tokens=tokens, stop_tokens=[]).tokens[0]

    def decisions(self) -> list[dict[str, Any]]:
        return [
            d
            for lane in ctl(self.daemon, "show", "--schedule", "-j").items()
            for d in lane["decisions"]
        ]

    def is_paused(self) -> bool:
        return any(one["paused"] == self.long.id for one in self.decisions())

    def report(self, session: djinn.Session) -> dict[str, Any]:
        return next(r for r in self.daemon.observer.sessions() if r["id"] == session.id)

    def kill_at_a_pause(self, worker: int) -> bool:
        """Kills it if the long run is paused for a step of the other session."""
        with stopped([worker]):
            reports = [self.report(one) for one in (self.long, self.other)]
            # The step that runs is the other's, whose deaths count while it makes no progress.
            goes_on = reports[1]["steps"] > self.steps
            if [one["running"] for one in reports] != [False, True] or not goes_on:
                return False
            os.kill(worker, signal.SIGKILL)
            self.steps = reports[1]["steps"]
            return True

    def cancel(self) -> None:
        assert ctl(self.daemon, "cancel", self.long.id).code == 0

    def close(self) -> None:
        self.long.close()
        self.other.close()


@pytest.fixture
def lane(byte_model: Path) -> Iterator[Lane]:
    with running() as daemon:
        one = Lane(daemon, byte_model)
        yield one
        one.close()


@pytest.fixture
def longer(byte_model: Path) -> Iterator[Lane]:
    """For what takes several sentences, or deaths, to be met."""
    with running() as daemon:
        one = Lane(daemon, byte_model, 4 * PRODUCTS)
        yield one
        one.close()


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def test_others_go_on_beside_a_long_run_and_each_has_what_it_has_alone(longer: Lane) -> None:
    with beside(longer.run) as run:
        sentences = 0
        while not run.done():
            assert longer.generate() == longer.tokens
            sentences += not run.done()
        assert run.result() == longer.result
    assert sentences >= 2
    taken = longer.decisions()
    assert any(one["reason"] == "slice" and one["session"] == longer.long.id for one in taken)
    assert any(
        one["paused"] == longer.long.id for one in taken if one["session"] == longer.other.id
    )


def test_a_session_that_comes_while_a_long_run_goes_on_does_not_wait_for_it(lane: Lane) -> None:
    with beside(lambda: lane.long.run_once(MINUTES, x=X)) as run:
        wait_until(lambda: bool(lane.report(lane.long)["running"]) or run.done(), "it runs")
        with lane.daemon.connect("new") as new:
            assert new.run_once(SMALL, x=np.ones(4, np.float32))["y"].sum() == -4
            assert new.put(np.ones(1 << 20, np.float32)).numpy().sum() == 1 << 20
        assert not run.done()
        lane.cancel()
        with pytest.raises(djinn.Error):
            run.result(60)


def test_updates_in_place_are_done_once_beside_others(lane: Lane) -> None:
    def updated() -> bytes:
        x = lane.long.put(X)
        lane.long.run_once(UPDATE, x=x)
        return bytes(x.numpy().tobytes())

    alone = updated()
    for _ in range(2):
        with beside(updated) as run:
            while not run.done():
                assert lane.generate() == lane.tokens
            assert run.result() == alone


def test_a_worker_that_dies_while_a_run_is_paused_accuses_the_run_of_nothing(longer: Lane) -> None:
    ended = threading.Event()

    def talk() -> None:
        while not ended.is_set():
            assert longer.generate() == longer.tokens

    # Three deaths of its own would have a run refused.
    with beside(talk) as talks:
        try:
            killed = 0
            while killed < 3:
                killed = 0
                with beside(longer.run) as run:
                    begun = 0  # the worker that was seen to compute it
                    while not run.done():
                        worker = longer.daemon.worker()
                        if worker["state"] != "ready" or killed == 4:
                            continue
                        if longer.report(longer.long)["running"]:
                            begun = worker["pid"]
                        elif begun == worker["pid"]:
                            killed += longer.kill_at_a_pause(begun)
                    assert run.result() == longer.result
        finally:
            ended.set()
        talks.result(60)


def test_a_run_that_is_cancelled_while_it_is_paused_ends_and_others_go_on(lane: Lane) -> None:
    with beside(lambda: lane.long.run_once(MINUTES, x=X)) as run:
        while not lane.is_paused():
            assert lane.generate() == lane.tokens
        lane.cancel()
        with pytest.raises(djinn.Error) as ended:
            run.result(60)
        assert ended.value.code == "cancelled"
    assert lane.generate() == lane.tokens
    assert lane.run() == lane.result


def test_a_model_that_is_evicted_while_a_run_on_it_is_paused_comes_back(
    lane: Lane, byte_model: Path
) -> None:
    text = (b"A program that lies dormant. " * 40)[:900]
    with lane.daemon.connect("prompt") as session:
        generator = djinn.Generator(session, byte_model)

        def prefill() -> list[list[int]]:
            options: dict[str, Any] = {"max_new_tokens": 2, "stop_tokens": []}
            return [generator.generate([[256, *text]], **options).tokens[0] for _ in range(10)]

        alone = prefill()
        with beside(prefill) as run:
            while not run.done():
                ctl(lane.daemon, "evict", "--force", "--all")
                assert lane.generate(5) == lane.tokens[:5]
            assert run.result(60) == alone


def client_with_a_long_run(host: str) -> None:
    with djinn.connect(host, name="killed") as session:
        print(session.id, flush=True)
        session.run_once(MINUTES, x=X)


def test_a_client_that_dies_while_its_run_is_paused_leaves_nothing(lane: Lane) -> None:
    code = f"import test_pauses; test_pauses.client_with_a_long_run({lane.daemon.host!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as client:
        assert client.stdout is not None
        session = client.stdout.readline().strip()
        while not any(one["paused"] == session for one in lane.decisions()):
            assert lane.generate(10) == lane.tokens[:10]
        client.kill()
    wait_until(
        lambda: session not in [r["id"] for r in lane.daemon.observer.sessions()], "it is gone"
    )
    assert lane.generate() == lane.tokens


def test_two_long_runs_and_a_sentence_starve_nobody(lane: Lane) -> None:
    with lane.daemon.connect("second") as second:
        program = second.define(matmuls(PRODUCTS, SIDE))

        def run() -> bytes:
            return bytes(next(iter(program(x=X).values())).tobytes())

        run()
        for _ in range(2):
            with beside(lane.run) as one, beside(run) as other:
                while not (one.done() and other.done()):
                    assert lane.generate() == lane.tokens
                assert one.result() == other.result() == lane.result


def test_fifo_pauses_nothing(byte_model: Path) -> None:
    with running("--policy", "fifo") as daemon:
        lane = Lane(daemon, byte_model)
        with beside(lane.run) as run:
            while not run.done():
                assert lane.generate(5) == lane.tokens[:5]
            assert run.result() == lane.result
        assert all(one["paused"] is None for one in lane.decisions())
        assert all(one["reason"] != "slice" for one in lane.decisions())
        lane.close()
