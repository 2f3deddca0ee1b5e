# SPDX-License-Identifier: Apache-2.0
"""Sessions that generate with one model and fast numerics at once: their token steps are computed
together, and each has what it has alone, whoever comes, goes, gives up or loses its worker."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import djinn
import pytest
from private_daemon import Daemon, running, wait_until

SESSIONS = 5
TOKENS = 150


class Crowd:
    """Sessions of one user on one model, each with a prompt and draws of its own."""

    def __init__(self, daemon: Daemon, model: Path, numerics: str) -> None:
        self.daemon, self.stack = daemon, ExitStack()
        self.pool = self.stack.enter_context(ThreadPoolExecutor(SESSIONS))
        self.generators = [
            djinn.Generator(
                self.stack.enter_context(daemon.connect(f"one of {SESSIONS}")),
                model,
                numerics=numerics,
            )
            for _ in range(SESSIONS)
        ]
        self.alone = [self.generate(number) for number in range(SESSIONS)]

    def generate(self, number: int, tokens: int = TOKENS, **options: Any) -> list[int]:
        prompt = [256, *(b"Whoever is number %d " % number * (1 + number))]
        drawn = self.generators[number].generate(
            [prompt],
            max_new_tokens=tokens,
            stop_tokens=[],
            temperature=1.0,
            seed=number,
            **options,
        )
        return drawn.tokens[0]

    def start(self, number: int, tokens: int = TOKENS) -> Future[list[int]]:
        return self.pool.submit(self.generate, number, tokens)

    def is_under_way(self, started: list[Future[list[int]]]) -> bool:
        """Or over already, where the machine is busy."""
        running = any(one["running"] for one in self.daemon.observer.sessions())
        return running or all(one.done() for one in started)

    def together(self) -> int:
        return int(self.daemon.worker()["runs_together"])


@pytest.fixture
def fast(byte_model: Path) -> Iterator[Crowd]:
    with running() as daemon:
        crowd = Crowd(daemon, byte_model, "fast")
        with crowd.stack:
            yield crowd


def test_each_has_the_tokens_that_it_has_alone_and_it_is_counted(fast: Crowd) -> None:
    assert fast.together() == 0

    def meet() -> bool:  # on a busy machine one may have ended before the next begins
        started = [fast.start(number) for number in range(SESSIONS)]
        assert [one.result(60) for one in started] == fast.alone
        return fast.together() > 0

    wait_until(meet, "what was computed together is counted")


def test_whoever_comes_and_goes_changes_nobodys_tokens(fast: Crowd) -> None:
    order = random.Random(7)
    going: dict[int, tuple[int, Future[list[int]]]] = {}
    for _ in range(40):
        number = order.randrange(SESSIONS)
        if number in going:
            tokens, started = going.pop(number)
            assert started.result(60) == fast.alone[number][:tokens]
        tokens = order.randrange(1, TOKENS)
        going[number] = (tokens, fast.start(number, tokens))
    for number, (tokens, started) in going.items():
        assert started.result(60) == fast.alone[number][:tokens]


def test_one_that_gives_up_leaves_the_others_as_they_were(fast: Crowd) -> None:
    others = [fast.start(number) for number in range(1, SESSIONS)]
    for _ in range(20):
        seen: list[int] = []

        def on_token(token: djinn.Token, seen: list[int] = seen) -> bool:
            seen.append(token.token)
            return len(seen) < 5

        fast.generate(0, on_token=on_token)
        assert seen[:5] == fast.alone[0][:5]
    assert [one.result(60) for one in others] == fast.alone[1:]


def test_deaths_of_the_worker_change_nobodys_tokens(fast: Crowd) -> None:
    for _ in range(5):
        started = [fast.start(number) for number in range(SESSIONS)]
        before = fast.daemon.worker()
        wait_until(partial(fast.is_under_way, started), "a step")
        os.kill(before["pid"], signal.SIGKILL)
        assert [one.result(60) for one in started] == fast.alone


def test_what_is_exact_is_computed_by_itself(byte_model: Path) -> None:
    with running() as daemon:
        crowd = Crowd(daemon, byte_model, "exact")
        with crowd.stack:
            started = [crowd.start(number) for number in range(SESSIONS)]
            assert [one.result(60) for one in started] == crowd.alone
            assert crowd.together() == 0


def test_unknown_numerics_are_told_with_those_that_there_are(
    daemon: Daemon, byte_model: Path
) -> None:
    with (
        daemon.connect("asks") as session,
        pytest.raises(djinn.RequestError, match=r"'quick'.*exact, fast and fast-only"),
    ):
        djinn.Generator(session, byte_model, numerics="quick")
