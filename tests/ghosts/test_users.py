"""Ghosts in the hands of users: pipelines, streamers, training, adapters, threads, dead workers.

The cases are in users.py, and run in one process, because a process has one device.
"""

import json
import os
import re
import signal
import threading
from pathlib import Path

import children
import pytest
from private_daemon import Daemon, running, wait_until

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 150.0
REPLY_S = 10.0
CASES = re.findall(r"^@case\ndef (\w+)", Path(__file__).with_name("users.py").read_text(), re.M)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Of every case that was reached."""
    scratch = tmp_path_factory.mktemp("users")
    report, log = scratch / "report.json", scratch / "users.log"
    with running() as daemon:
        ended = children.python(log, LIMIT_S, "users.py", str(report), str(scratch), daemon.host)
    found = json.loads(report.read_text()) if report.exists() else {}
    return found | {"the process": ended}


@pytest.mark.ci
@pytest.mark.parametrize("name", ["the process", *CASES])
def test_that(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes.get(name, f"not reached: {outcomes['the process']}") is None, outcomes[name]


def workers_of(daemon: Daemon) -> list[int]:
    """The one that serves, and the spare that takes its place."""
    pid = daemon.process.pid
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    names = {int(one): Path(f"/proc/{one}/cmdline").read_text() for one in below}
    return [one for one, name in names.items() if "djinn-worker" in name]


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_sequence_group_is_made_by_a_worker_that_is_taking_in_the_session() -> None:
    made = threading.Event()
    with running() as daemon, daemon.connect("late") as session:
        session.sequence(1, 1, 1, 8, "float32", 16).drop()
        serving = daemon.worker()["pid"]
        wait_until(lambda: len(workers_of(daemon)) == 2, "a spare worker is there")
        (spare,) = {*workers_of(daemon)} - {serving}
        wait_until(lambda: threads_of(spare) == threads_of(serving), "the spare has begun")
        with daemon.connect("another"):  # longer than it takes to say so
            pass
        os.kill(spare, signal.SIGSTOP)  # it is told of the session, and cannot answer
        os.kill(serving, signal.SIGKILL)
        wait_until(lambda: daemon.worker()["pid"] == spare, "the spare is to serve")

        def make() -> None:
            session.sequence(1, 1, 1, 8, "float32", 16)
            made.set()

        asking = threading.Thread(target=make, daemon=True)
        asking.start()
        # Its question is on the wire before that of a client that comes later.
        wait_until(lambda: asks(asking.native_id), "the client waits for its answer")
        daemon.status()
        os.kill(spare, signal.SIGCONT)
        answered = made.wait(REPLY_S)
        if not answered:
            os.kill(spare, signal.SIGKILL)  # frees the client: it is asked for anew
        assert answered, "djinnd did not answer"


def asks(thread: int | None) -> bool:
    """Whether the thread of this process sleeps."""
    state = Path(f"/proc/self/task/{thread}/status").read_text() if thread else ""
    return "State:\tS" in state
