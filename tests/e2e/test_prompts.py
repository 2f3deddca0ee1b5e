# SPDX-License-Identifier: Apache-2.0
"""Long prompts of fast numerics run in parts, each a step of its own: whoever computes beside them,
however often their worker dies and whoever gives up, the tokens are the same."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import djinn
import pytest
from private_daemon import Daemon, running, wait_until

PROMPT = [256, *(b"In parts, however long it is: " * 15)]  # four parts


class Talker:
    def __init__(self, daemon: Daemon, session: djinn.Session, model: Path) -> None:
        self.daemon = daemon
        self.generator = djinn.Generator(session, model, numerics="fast")

    def is_under_way(self, started: Future[list[int]]) -> bool:
        running = any(one["running"] for one in self.daemon.observer.sessions())
        return running or started.done()

    def generate(self, tokens: int = 30) -> list[int]:
        return self.generator.generate([PROMPT], max_new_tokens=tokens, stop_tokens=[]).tokens[0]


@pytest.fixture
def talker(byte_model: Path) -> Iterator[Talker]:
    with running() as daemon, daemon.connect("talker") as session:
        yield Talker(daemon, session, byte_model)


def test_a_prompt_in_parts_is_continued_as_exact_numerics_continue_it(
    talker: Talker, byte_model: Path
) -> None:
    with talker.daemon.connect("exact") as session:
        exact = djinn.Generator(session, byte_model, numerics="exact")
        expected = exact.generate([PROMPT], max_new_tokens=30, stop_tokens=[]).tokens[0]
    before = talker.daemon.worker()["runs"]
    assert talker.generate() == expected, "sums that differ in their last bits"
    assert talker.daemon.worker()["runs"] - before >= 4 + 29, "four parts, and a run a token"


def test_deaths_in_the_midst_of_a_prompt_change_no_token(talker: Talker) -> None:
    expected = talker.generate()
    with ThreadPoolExecutor() as pool:
        for _ in range(6):
            before = talker.daemon.worker_pid()
            started = pool.submit(talker.generate)
            wait_until(partial(talker.is_under_way, started), "a step")
            os.kill(before, signal.SIGKILL)
            assert started.result(60) == expected


def test_others_that_compute_beside_it_change_no_token(talker: Talker, byte_model: Path) -> None:
    expected = talker.generate()
    ended = threading.Event()

    def talk() -> None:
        with talker.daemon.connect("other") as session:
            other = Talker(talker.daemon, session, byte_model)
            while not ended.is_set():
                assert other.generate(5) == expected[:5]

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(talk) for _ in range(3)]
        for _ in range(10):
            assert talker.generate() == expected
        ended.set()
        for one in others:
            one.result(60)
