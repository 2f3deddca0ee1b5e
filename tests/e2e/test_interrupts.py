# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C of the Python package: what a signal's handler raises ends any wait for djinnd, a djinnd
that stands still among them, and the session works on."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import djinn
import numpy as np
import pytest
from private_daemon import Daemon, stopped, wait_until

SOON_S = 0.2  # the call waits by then; a handler that came before it would raise as well


class Alarm(Exception):
    """What the handler raises."""


def ring(_number: int, _frame: FrameType | None) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def expect_ended(call: Callable[[], object]) -> None:
    with pytest.raises(Alarm):
        signal.setitimer(signal.ITIMER_REAL, SOON_S)
        call()


def held(daemon: Daemon, name: str) -> tuple[int, int]:
    (one,) = (each for each in daemon.observer.sessions() if each["name"] == name)
    return one["models"], one["sequences"]


def test_every_call_ends_while_djinnd_is_stopped(
    daemon: Daemon, session: djinn.Session, byte_model: Path, request: pytest.FixtureRequest
) -> None:
    calls: list[Callable[[], object]] = [
        session.status,
        session.sessions,
        lambda: session.load(byte_model),
        lambda: djinn.Generator(session, byte_model),
        lambda: session.define('srg 1 "late"'),
        lambda: daemon.connect("in vain"),
    ]

    def nothing_is_left() -> bool:
        is_alone = session.status()["sessions"] == 2  # what is given back goes with this call
        return is_alone and held(daemon, request.node.name) == (0, 0)

    for call in calls:
        with stopped([daemon.process.pid]):
            expect_ended(call)
        wait_until(nothing_is_left, "what the call asked for is gone")
    generator = djinn.Generator(session, byte_model)
    assert len(generator.generate([[256, 84]], max_new_tokens=3, stop_tokens=[]).tokens[0]) == 3


def test_a_generation_ends_while_djinnd_is_stopped(
    daemon: Daemon, session: djinn.Session, byte_model: Path, request: pytest.FixtureRequest
) -> None:
    generator = djinn.Generator(session, byte_model)
    pid = daemon.process.pid
    seen: list[djinn.Token] = []

    def stop_djinnd(token: djinn.Token) -> None:
        if not seen:
            os.kill(pid, signal.SIGSTOP)
            signal.setitimer(signal.ITIMER_REAL, SOON_S)
        seen.append(token)

    try:
        with pytest.raises(Alarm):
            generator.generate([[256, 84]], on_token=stop_djinnd, stop_tokens=[])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert seen
    wait_until(lambda: held(daemon, request.node.name) == (1, 0), "its sequence group is dropped")
    assert len(generator.generate([[256, 84]], max_new_tokens=3, stop_tokens=[]).tokens[0]) == 3


def test_a_long_run_ends(session: djinn.Session) -> None:
    size = 1024
    lines = ['srg 1 "products"', f"input %x0 : float32[{size}, {size}]"]
    lines += [f"%x{n + 1} = aten::mm(%x{n}, %x0)" for n in range(2000)]
    program = session.define("\n".join([*lines, "output %x2000", ""]))
    zeros = np.zeros((size, size), np.float32)
    expect_ended(lambda: program(outputs={}, x0=zeros))
    small = session.define('srg 1 "small"\ninput %x : float32[1]\n%y = aten::neg(%x)\noutput %y\n')
    assert small(x=np.ones(1, np.float32))["y"] == [-1]


def test_another_thread_that_closes_the_session_ends_a_call(daemon: Daemon) -> None:
    session = daemon.connect("closed")
    heard: list[BaseException] = []

    def ask() -> None:
        try:
            session.status()
        except djinn.LostError as error:
            heard.append(error)

    with stopped([daemon.process.pid]):
        thread = threading.Thread(target=ask)
        thread.start()
        session.close()
        thread.join(60)
        assert not thread.is_alive()
    assert len(heard) == 1
