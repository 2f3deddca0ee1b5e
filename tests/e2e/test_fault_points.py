# SPDX-License-Identifier: Apache-2.0
"""Workers that die between two writes of what must survive: at every point where one can, and the
client gets the bytes that it gets without."""

import itertools
import threading
from dataclasses import dataclass
from pathlib import Path

import djinn
import numpy as np
import pytest
from private_daemon import Daemon, running, wait_until

PROMPTS = [[256, *b"The worker "], [256, *b"A "]]
OPTIONS = {"max_new_tokens": 5, "stop_tokens": [], "temperature": 0.8, "seed": 4}
# Adds to a part of its input, in place: done twice, it shows.
COUNT_UP = """srg 1 "count up"
input %x : float32[4096]
view %part of %x : float32[1000] offset 100
%y = aten::add_.Scalar(%part, 1, 1)
output %y
"""
DOUBLE = """srg 1 "double"
input %x : float32[4096]
%y = aten::add.Tensor(%x, %x)
output %y
"""
# Of the scenario's points, 287 when this was written.
SPREAD = (1, 4, 9, 17, 33, 60, 90, 120, 150, 180, 210, 240, 262, 281)
POINTS_MAX = 1000  # far more than the scenario has


@dataclass(frozen=True)
class Seen:
    """All that a client gets to see."""

    tokens: list[list[int]]
    random_offset: int
    heard: list[djinn.Token]
    arrays: list[bytes]
    bytes_read: int  # from files, ever: weights outlive a worker


def scenario(daemon: Daemon, model: Path) -> Seen:
    """A prefill, some tokens, refs made, changed in place, read and released, a group dropped."""
    with daemon.connect("scenario", staging_bytes=256 * 1024) as session:
        generator = djinn.Generator(session, model)
        heard: list[djinn.Token] = []
        generated = generator.generate(PROMPTS, on_token=heard.append, **OPTIONS)
        ref = session.put(np.arange(4096, dtype=np.float32))
        count_up = session.define(COUNT_UP)
        arrays = [count_up(x=ref)["y"].tobytes() for _ in range(2)]
        other = session.define(DOUBLE)(x=ref, outputs="ref")["y"]
        count_up(x=ref, outputs={})
        arrays += [ref.numpy().tobytes(), other.numpy().tobytes()]
        ref.release()
        arrays.append(other.numpy(slice(5, 3000, 7)).tobytes())
        bytes_read = daemon.status()["bytes_read"]
        return Seen(generated.tokens, generated.random_offset, heard, arrays, bytes_read)


@pytest.fixture(scope="module")
def expected(daemon: Daemon, byte_model: Path) -> Seen:
    seen = scenario(daemon, byte_model)
    assert scenario(daemon, byte_model) == seen
    x = np.arange(4096, dtype=np.float32)
    x[100:1100] += 1
    assert seen.arrays[0] == x[100:1100].tobytes()
    x[100:1100] += 1
    assert seen.arrays[1] == x[100:1100].tobytes()
    assert seen.arrays[3] == (x + x).tobytes()
    assert seen.arrays[4] == (x + x)[5:3000:7].tobytes()
    x[100:1100] += 1
    assert seen.arrays[2] == x.tobytes()
    return seen


def dies_at(point: int, expected: Seen, model: Path) -> bool:
    """Whether the first worker died; that nobody could tell is asserted."""
    with running("--test-fault-at", str(point)) as daemon:
        assert scenario(daemon, model) == expected, f"the worker died at point {point}"
        wait_until(lambda: daemon.status()["memory_sessions_bytes"] == 0, "sessions are released")
        return daemon.worker()["restarts"] == 1


@pytest.mark.ci
def test_a_worker_that_dies_at_a_fault_point_changes_no_byte(
    expected: Seen, byte_model: Path
) -> None:
    died = [dies_at(point, expected, byte_model) for point in SPREAD]
    assert died[0]
    assert sum(died) >= 10, "the scenario passes fewer points than it did"


@pytest.mark.full
def test_a_worker_that_dies_at_any_fault_point_changes_no_byte(
    expected: Seen, byte_model: Path
) -> None:
    points = itertools.takewhile(
        lambda point: dies_at(point, expected, byte_model), range(1, POINTS_MAX)
    )
    count = len(list(points))
    print(f"{count} points")
    assert 100 < count < POINTS_MAX - 1


@pytest.mark.ci
@pytest.mark.parametrize("point", [1, 4, 9])
def test_workers_that_all_die_end_the_session_and_not_the_daemon(point: int) -> None:
    """Even refusing the run kills them: nobody waits for ever."""
    lost: list[djinn.Error] = []

    def use(daemon: Daemon) -> None:
        try:
            with daemon.connect("unlucky") as session:
                session.put(np.zeros(4096, np.float32))
        except djinn.Error as error:
            lost.append(error)

    with running("--test-fault-at", str(point), "--test-fault-every") as daemon:
        client = threading.Thread(target=use, args=(daemon,), daemon=True)
        client.start()
        wait_until(lambda: not client.is_alive(), "the client has an answer")
        assert [error.code for error in lost] == ["worker_lost"]
        assert daemon.worker()["restarts"] <= 9
        wait_until(lambda: daemon.status()["sessions"] == 1, "the session is gone")
