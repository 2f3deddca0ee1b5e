# SPDX-License-Identifier: Apache-2.0
"""Runs that take long, for tests that meet them on their way; and runs that may wait for so long
only behind them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import djinn
import numpy as np
from private_daemon import Daemon, wait_until

PRODUCTS = 200
X = np.eye(640, dtype=np.float32)


def matmuls(count: int, side: int = 640) -> str:
    """Of a float32 matrix x of so many rows and columns; the result is y{count}."""
    lines = [f"%y{i + 1} = aten::matmul(%y{i}, %x)" for i in range(count)]
    header = f'srg 1 "long"\ninput %x : float32[{side}, {side}]\n%y0 = aten::clone(%x)\n'
    return header + "\n".join([*lines, f"output %y{count}\n"])


def in_time(call: Callable[[], Any]) -> Any:
    """What the call gives, which a busy machine may keep from its turn for longer than it waits."""
    given: list[Any] = []

    def began() -> bool:
        with suppress(djinn.LimitError):
            given.append(call())
        return bool(given)

    wait_until(began, "it begins in time")
    return given[0]


@contextmanager
def computing(daemon: Daemon) -> Iterator[Callable[[], bool]]:
    """Somebody's run, which takes as long as one that the lane has seen before. Gives whether it
    still goes on."""
    with daemon.connect("long") as session:
        program = session.define(matmuls(PRODUCTS))
        for _ in range(2):  # the first has recorded its plan, and the second waited for its memory
            program(x=X)
        thread = threading.Thread(target=program, kwargs={"x": X})
        thread.start()
        looks = 0  # in a row that found it running: at first it may wait for memory once more

        def computes() -> bool:
            nonlocal looks
            reports = daemon.observer.sessions()
            runs = any(one["running"] for one in reports if one["id"] == session.id)
            looks = looks + 1 if runs else 0
            return looks == 20

        wait_until(computes, "the run computes")
        yield thread.is_alive
        thread.join()
