# SPDX-License-Identifier: Apache-2.0
"""djinnd winds up: what runs goes on for its time, nobody new is taken in, and then it ends."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn
import pytest
from command_line import Host, ctl
from private_daemon import BIN, Daemon, running, stopped, wait_until
from systemd_double import Systemd

PROMPT = [256, *b"The kernel "]
LONG: dict[str, Any] = {"max_new_tokens": 900, "stop_tokens": []}


class Talker:
    """A generation in a thread of its own."""

    def __init__(self, generator: djinn.Generator) -> None:
        self.generator = generator
        self.seen = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._talk, daemon=True)
        self.thread.start()
        wait_until(lambda: self.seen > 3, "it talks")

    def _talk(self) -> None:
        try:
            self.generator.generate([PROMPT], on_token=self._take, **LONG)
        except BaseException as error:
            self.error = error

    def _take(self, _: djinn.Token) -> None:
        self.seen += 1


def draining(daemon: Host) -> bool:
    return bool(ctl(daemon, "status", "-j").items()[0]["draining"])


@contextmanager
def talking(daemon: Daemon | Systemd, session: djinn.Session, model: Path) -> Iterator[Talker]:
    """A generation that stands still until the block ends: its worker does."""
    talker = Talker(djinn.Generator(session, model))
    (worker,) = ctl(daemon, "status", "-j").items()[0]["workers"]
    with stopped([worker["pid"]]):
        yield talker


def test_a_run_in_flight_is_finished_before_djinnd_ends(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "60000") as daemon, daemon.connect("talker") as session:
        with talking(daemon, session, byte_model) as talker:
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: draining(daemon), "it drains")
            with pytest.raises(djinn.Error, match="draining"):
                daemon.connect("late")
        talker.thread.join(60)
        assert talker.error is None
        assert talker.seen == LONG["max_new_tokens"]
        assert daemon.process.wait(60) == 0


def test_a_drain_waits_until_the_last_session_has_left(byte_model: Path) -> None:
    with running() as daemon:
        with daemon.connect("one"), daemon.connect("two") as two:
            late = ctl(daemon, "drain", "--wait=0")
            assert late.code == 7
            first, second = late.err.splitlines()[:2]
            assert first == "djinnctl: djinnd is draining; 2 sessions are left"
            assert second.startswith("djinnctl: 2 sessions are left after 0 s.")
            assert "djinnctl resume" in late.err
            assert draining(daemon)
            command = [str(BIN / "djinnctl"), "--host", daemon.host, "drain", "--wait"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
                assert waiting.stderr is not None
                assert waiting.stderr.readline() == f"{first}\n"
                two.close()
                assert waiting.stderr.readline() == "djinnctl: 1 session is left\n"
                assert waiting.poll() is None
                ctl(daemon, "resume")
                assert "Somebody has ended the drain" in waiting.stderr.read()
                assert waiting.wait(60) == 1
            # One that does not wait tells how many are left, too.
            now = ctl(daemon, "drain")
            assert (now.code, now.out) == (0, b"")
            assert now.err == "djinnctl: djinnd is draining; 1 session is left\n"
            assert ctl(daemon, "-q", "drain").err == ""
        # Nobody but who only looks.
        nobody = (0, "djinnctl: djinnd is draining; no session is left\n")
        for wait in (["--wait=60"], ["--wait", "1m"], ["--wait"], []):
            done = ctl(daemon, "drain", *wait)
            assert (done.code, done.err) == nobody
        assert ctl(daemon, "drain", "--wait=soon").code == 2


def test_a_resume_says_where_nothing_was_drained() -> None:
    with running() as daemon:
        ctl(daemon, "drain")
        for told in ("", *["djinnctl: djinnd was not draining\n"] * 2):
            done = ctl(daemon, "resume")
            assert (done.code, done.out, done.err) == (0, b"", told)
        assert ctl(daemon, "-q", "resume").err == ""
        assert ctl(daemon, "resume", "-j").items() == [{"draining": False}]


def test_systemd_is_told_how_many_sessions_a_drain_has_left(systemd: Systemd) -> None:
    systemd.start("--user", "--threads", "1")
    systemd.hear("READY=1")
    with systemd.connect():
        ctl(systemd, "drain")
        systemd.hear("STATUS=Draining, 1 session left")
    systemd.hear("STATUS=Draining, 0 sessions left")
    ctl(systemd, "resume")
    systemd.hear("STATUS=0 sessions")


def test_who_asks_twice_does_not_wait(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "3600000") as daemon, daemon.connect("talker") as session:
        with talking(daemon, session, byte_model) as talker:
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: draining(daemon), "it drains")
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(60) == 0
        talker.thread.join(60)
        assert isinstance(talker.error, djinn.Error)


def test_who_asks_until_it_has_ended_sees_it_end_in_order() -> None:
    for _ in range(5):
        with running() as daemon, daemon.connect("idle"):
            while daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.returncode == 0


def test_what_does_not_end_in_its_time_is_ended(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "200") as daemon, daemon.connect("talker") as session:
        with talking(daemon, session, byte_model) as talker:
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(60) == 0
        talker.thread.join(60)
        assert isinstance(talker.error, djinn.Error)
        assert talker.seen < LONG["max_new_tokens"]


def test_systemd_is_told_to_wait_while_a_run_goes_on(systemd: Systemd, byte_model: Path) -> None:
    systemd.start("--user", "--threads", "1", "--drain-timeout-ms", "600000")
    with systemd.connect() as session:
        assert systemd.process is not None
        with talking(systemd, session, byte_model) as talker:
            systemd.process.send_signal(signal.SIGTERM)
            for _ in range(2):
                told = systemd.hear("EXTEND_TIMEOUT_USEC=")
                assert int(told.splitlines()[0].partition("=")[2]) >= 1_000_000
        talker.thread.join(60)
        assert talker.error is None
    assert systemd.stop() == 0


SLOW_CLIENT = """
import sys, djinn
with djinn.connect(sys.argv[1]) as session:
    generator = djinn.Generator(session, sys.argv[2])
    begun = []
    def tell(token):
        if not begun:
            begun.append(token)
            print("begun", flush=True)
    said = generator.generate(
        [[256, *b"The kernel "]], max_new_tokens=200, stop_tokens=[], on_token=tell
    )
    print(len(said.tokens[0]), flush=True)
"""


def test_a_client_that_comes_late_has_what_was_finished_before_djinnd_ended(
    byte_model: Path,
) -> None:
    with running("--drain-timeout-ms", "600000") as daemon:
        command = [sys.executable, "-c", SLOW_CLIENT, daemon.host, str(byte_model)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "begun\n"
            with stopped([client.pid]):
                daemon.process.send_signal(signal.SIGTERM)
                assert daemon.process.wait(60) == 0
            assert client.stdout.read() == "200\n"
            assert client.wait(60) == 0
