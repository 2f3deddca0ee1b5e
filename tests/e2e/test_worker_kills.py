# SPDX-License-Identifier: Apache-2.0
"""Workers die in mid-sentence, and nobody who reads the sentence can tell."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from long_runs import matmuls
from private_daemon import (
    Daemon,
    children_named,
    children_of,
    open_files,
    running,
    stopped,
    wait_until,
)

TOKENS = 160
GREEDY: dict[str, Any] = {"max_new_tokens": TOKENS, "stop_tokens": []}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 0.8, "top_p": 0.95, "seed": 5}
# A prefill of so many tokens takes long enough to be met inside of it.
TEXT = (
    ":daemon: /day'mn/, /dee'mn/, n. A program that lies dormant, waiting for conditions. " * 11
)[:850]
LONG_PROMPT = [256, *TEXT.encode()]
SHORT_PROMPT = [256, *b":worker: /w"]


class Stream:
    """A generation in a thread of its own, with the session of its own that it runs in."""

    def __init__(self, generator: djinn.Generator, options: dict[str, Any]) -> None:
        self.generator = generator
        self.options = options
        self.tokens: list[int] = []
        self.error: BaseException | None = None
        self.result: djinn.Generated | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self, prompts: list[list[int]]) -> "Stream":
        self.prompts = prompts
        self.thread.start()
        return self

    def _work(self) -> None:
        try:
            self.result = self.generator.generate(self.prompts, on_token=self._take, **self.options)
        except BaseException as error:
            self.error = error

    def _take(self, token: djinn.Token) -> None:
        assert token.index == len(self.tokens) // len(self.prompts)
        self.tokens.append(token.token)

    @property
    def running(self) -> bool:
        return self.thread.is_alive()

    def finish(self) -> list[int]:
        self.thread.join(60)
        assert not self.running, f"stands still after {len(self.tokens)} tokens"
        if self.error is not None:
            raise self.error
        return self.tokens


class Victims:
    """Two sessions that generate at the same time, one greedily and one with a seed, and what they
    say when nobody disturbs them."""

    def __init__(self, daemon: Daemon, model: Path) -> None:
        self.daemon = daemon
        self.killed_pid = self.worker_pid = 0
        self.sessions = [daemon.connect("greedy"), daemon.connect("seeded")]
        self.generators = [djinn.Generator(session, model) for session in self.sessions]
        self.expected = {
            len(prompt): [s.finish() for s in self.start(prompt)]
            for prompt in (LONG_PROMPT, SHORT_PROMPT)
        }

    def start(self, prompt: list[int]) -> list[Stream]:
        self.wait_for_worker()
        options = (GREEDY, SEEDED)
        streams = [Stream(g, o) for g, o in zip(self.generators, options, strict=True)]
        return [stream.start([prompt]) for stream in streams]

    def reports(self) -> list[dict[str, Any]]:
        ids = [session.id for session in self.sessions]
        return [r for r in self.daemon.observer.sessions() if r["id"] in ids]

    def kill(self) -> None:
        self.wait_for_worker()
        self.kill_now()

    def kill_now(self) -> None:
        """Kills the worker that wait_for_worker() saw."""
        os.kill(self.worker_pid, signal.SIGKILL)
        self.killed_pid = self.worker_pid

    def wait_for_worker(self) -> None:
        """Until there is one that was not killed yet."""

        def is_there() -> bool:
            worker = self.daemon.worker()
            self.worker_pid = worker["pid"]
            return worker["state"] == "ready" and self.worker_pid != self.killed_pid

        wait_until(is_there, "a worker")

    def kill_after_new_tokens(self, streams: list[Stream], first: int) -> bool:
        """Kills once every stream has a new token, the last of them that of stream `first`. False:
        a stream was over before."""
        self.wait_for_worker()
        for stream in (streams[1 - first], streams[first]):
            seen = len(stream.tokens)
            wait_until(lambda s=stream, n=seen: len(s.tokens) > n or not s.running, "a new token")
        if not all(stream.running for stream in streams):
            return False
        self.kill_now()
        return True

    def kill_in_prefill(self, streams: list[Stream]) -> bool:
        """Kills while a prefill runs. False: a token came before."""
        wait_until(
            lambda: any(r["running"] for r in self.reports()) or any(s.tokens for s in streams),
            "a prefill runs",
        )
        self.kill_now()
        return not any(stream.tokens for stream in streams)

    def check(self, streams: list[Stream], prompt: list[int]) -> None:
        assert [stream.finish() for stream in streams] == self.expected[len(prompt)]

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@pytest.fixture
def victims(daemon: Daemon, byte_model: Path) -> Iterator[Victims]:
    both = Victims(daemon, byte_model)
    yield both
    both.close()


def kill_often(victims: Victims, kills: int) -> None:
    """A tenth of the kills in prefill, half of the others behind a seeded token."""
    daemon = victims.daemon
    before = daemon.status()
    restarts = before["workers"][0]["restarts"]
    in_prefill = in_decode = 0
    prefill_kills, decode_kills = kills // 10, kills - kills // 10
    while in_prefill < prefill_kills or in_decode < decode_kills:
        prefill_is_due = in_prefill < prefill_kills and in_prefill * 9 <= in_decode
        prompt = LONG_PROMPT if prefill_is_due else SHORT_PROMPT
        streams = victims.start(prompt)
        if prefill_is_due:
            in_prefill += victims.kill_in_prefill(streams)
        for _ in range(5):
            if in_decode < decode_kills:
                in_decode += victims.kill_after_new_tokens(streams, in_decode % 2)
        victims.check(streams, prompt)
    after = daemon.status()
    assert in_prefill + in_decode == kills
    assert after["bytes_read"] == before["bytes_read"]
    assert after["workers"][0]["restarts"] - restarts >= kills
    assert after["sessions"] == before["sessions"]


@pytest.mark.ci
def test_10_killed_workers_change_no_token(victims: Victims) -> None:
    kill_often(victims, 10)


@pytest.mark.full
def test_100_killed_workers_change_no_token(victims: Victims) -> None:
    kill_often(victims, 100)


@pytest.mark.ci
def test_a_batch_survives_a_killed_worker(victims: Victims) -> None:
    prompts = [SHORT_PROMPT, LONG_PROMPT[:40], LONG_PROMPT[:90]]
    generator = victims.generators[0]
    expected = generator.generate(prompts, **SEEDED)
    stream = Stream(generator, SEEDED).start(prompts)
    wait_until(lambda: len(stream.tokens) > 60, "some tokens")
    victims.kill()
    stream.finish()
    assert stream.result == expected


@pytest.mark.ci
def test_refs_and_programs_outlive_a_worker(victims: Victims) -> None:
    session = victims.sessions[0]
    source = 'srg 1 "double"\ninput %x : int64[3]\n%y = aten::add.Tensor(%x, %x)\noutput %y\n'
    program = session.define(source)
    first = program(x=[1, 2, 3], outputs="ref")["y"]
    victims.kill()
    second = program(x=first, outputs="ref")["y"]
    victims.kill()
    assert second.numpy().tolist() == [4, 8, 12]
    assert first.numpy().tolist() == [2, 4, 6]


@pytest.mark.ci
def test_a_run_that_met_three_deaths_is_refused_and_its_neighbour_never_notices(
    victims: Victims,
) -> None:
    unlucky, neighbour = victims.generators
    expected = neighbour.generate([SHORT_PROMPT], **SEEDED)
    stream = Stream(unlucky, GREEDY).start([LONG_PROMPT] * 4)
    undisturbed = Stream(neighbour, SEEDED).start([SHORT_PROMPT])
    unlucky_id = victims.sessions[0].id
    kills = 0
    while stream.running:
        if not undisturbed.running:
            assert undisturbed.finish() == expected.tokens[0]
            undisturbed = Stream(neighbour, SEEDED).start([SHORT_PROMPT])
        if any(r["running"] for r in victims.reports() if r["id"] == unlucky_id):
            victims.kill_now()
            kills += 1
            victims.wait_for_worker()
    assert isinstance(stream.error, djinn.LostError)
    assert stream.error.code == "worker_lost"
    assert 3 <= kills <= 30, "not every kill meets the run in its step"
    assert stream.tokens == []
    assert undisturbed.finish() == expected.tokens[0]
    assert neighbour.generate([SHORT_PROMPT], **SEEDED) == expected
    assert unlucky.generate([SHORT_PROMPT], **SEEDED) == expected


@pytest.mark.ci
def test_a_worker_that_hangs_is_replaced(byte_model: Path) -> None:
    with running("--hang-timeout-ms", "1000") as daemon:
        victims = Victims(daemon, byte_model)
        streams = victims.start(SHORT_PROMPT)
        wait_until(lambda: all(len(s.tokens) > 3 for s in streams), "some tokens")
        stopped = daemon.worker()["pid"]
        os.kill(stopped, signal.SIGSTOP)
        victims.check(streams, SHORT_PROMPT)
        assert daemon.worker()["pid"] != stopped
        wait_until(lambda: not Path(f"/proc/{stopped}").exists(), "the stopped worker is gone")
        victims.close()


def test_a_run_that_takes_longer_than_a_hang_may_is_no_hang() -> None:
    """As long as it gets from one operator to the next."""
    with running("--hang-timeout-ms", "1000") as daemon, daemon.connect("patient") as session:
        x = np.eye(640, dtype=np.float32)
        count, lasted_s = 60, 0.0
        while lasted_s < 2:  # until the run is long enough for this machine
            count *= 2
            program = session.define(matmuls(count))
            begun = time.monotonic()
            assert program(x=x)["y" + str(count)].tobytes() == x.tobytes()
            lasted_s = time.monotonic() - begun
        assert daemon.worker()["restarts"] == 0


def test_an_operator_that_takes_longer_than_a_hang_may_is_told_so_and_kills_once() -> None:
    """Its input is small: on a busy machine the copy of a large one may be what takes too long."""
    size = 6144
    source = (
        f'srg 1 "long"\ninput %x : float32[{size}]\n%m = aten::expand(%x, [{size}, {size}])\n'
        "%y = aten::mm(%m, %m)\n%z = aten::sum.dim_IntList(%y, [0, 1])\noutput %z\n"
    )
    with running("--hang-timeout-ms", "1000") as daemon, daemon.connect("hasty") as session:
        program = session.define(source)
        with pytest.raises(djinn.Error, match=r"The operator aten::mm ran longer than 1 s"):
            program(x=np.ones(size, np.float32))
        # On a busy machine others may stand still before they come to it.
        told = re.findall(r"worker (\d+) is in one operator for longer", daemon.log.read_text())
        assert len(told) == 1
        x = session.put(np.ones(4, np.float32))
        assert x.numpy().sum() == 4


def test_who_ends_one_worker_after_the_other_lets_neighbours_have_their_turn_in_between() -> None:
    """With the next long run submitted as soon as the one before is refused."""
    size = 3072
    long = f'srg 1 "long"\n%x = aten::ones([{size}, {size}])\n%y = aten::mm(%x, %x)\noutput %y\n'
    short = 'srg 1 "short"\ninput %x : float32[4]\n%y = aten::add.Tensor(%x, %x)\noutput %y\n'
    x = np.ones(4, np.float32)
    deaths = 6
    with (
        running("--hang-timeout-ms", "200") as daemon,
        ExitStack() as kept,
        ThreadPoolExecutor() as pool,
    ):
        sessions = sorted(
            (kept.enter_context(daemon.connect("one")) for _ in range(8)), key=lambda one: one.id
        )
        culprit, neighbour = sessions[0], sessions[-1]  # a worker serves them in this order
        neighbour.run_once(short, x=x)
        refused = 0
        waited = []  # through how many deaths each run of the neighbour

        def work() -> None:
            while refused < deaths:
                before = refused
                neighbour.run_once(short, x=x)
                waited.append(refused - before)

        neighbours = pool.submit(work)
        while refused < deaths:
            with pytest.raises(djinn.Error, match="ran longer than"):
                culprit.run_once(long)
            refused += 1
        neighbours.result(60)
        # The one that it is in, and on a busy machine the next before the client has looked.
        assert max(waited) <= 2, waited


@pytest.mark.ci
def test_an_idle_worker_that_dies_is_replaced_before_anybody_asks(victims: Victims) -> None:
    died = victims.daemon.worker()["pid"]
    victims.kill()
    wait_until(
        lambda: (
            victims.daemon.worker()["pid"] != died and victims.daemon.worker()["state"] == "ready"
        ),
        "another worker is ready",
    )
    streams = victims.start(SHORT_PROMPT)
    victims.check(streams, SHORT_PROMPT)


def test_a_group_that_is_made_while_the_next_worker_takes_the_session_in() -> None:
    """The next worker is stopped before it can answer that it has the session."""
    with running() as daemon, daemon.connect("maker") as session:
        geometry = (1, 1, 1, 8, "float32", 16)
        session.sequence(*geometry)
        first, djinnd = daemon.worker_pid(), daemon.process.pid

        def spares() -> list[int]:
            return [one for one in children_named(djinnd, "djinn-worker") if one != first]

        wait_until(lambda: len(spares()) > 0, "a spare worker was made")
        with stopped(spares()):
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: first not in children_of(djinnd), "djinnd saw the death")
            made: list[Any] = []
            maker = threading.Thread(target=lambda: made.append(session.sequence(*geometry)))
            maker.start()
            wait_until(lambda: open_files(djinnd, "djinn-sequence") == 2, "the group is made")
        maker.join(30)
        assert made, "its client waits for ever"
