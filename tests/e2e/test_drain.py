"""djinnd winds up: what runs goes on for its time, nobody new is taken in, and then it ends."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import djinn
import pytest
from command_line import ctl
from private_daemon import Daemon, running, wait_until

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


def draining(daemon: Daemon) -> bool:
    return bool(ctl(daemon, "status", "-j").items()[0]["draining"])


def test_a_run_in_flight_is_finished_before_djinnd_ends(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "60000") as daemon, daemon.connect("talker") as session:
        talker = Talker(djinn.Generator(session, byte_model))
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: draining(daemon), "it drains")
        with pytest.raises(djinn.Error, match="draining"):
            daemon.connect("late")
        talker.thread.join(60)
        assert talker.error is None
        assert talker.seen == LONG["max_new_tokens"]
        assert daemon.process.wait(20) == 0


def test_who_asks_twice_does_not_wait(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "3600000") as daemon, daemon.connect("talker") as session:
        talker = Talker(djinn.Generator(session, byte_model))
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: draining(daemon), "it drains")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(20) == 0
        talker.thread.join(60)
        assert isinstance(talker.error, djinn.Error)


def test_what_does_not_end_in_its_time_is_ended(byte_model: Path) -> None:
    with running("--drain-timeout-ms", "200") as daemon, daemon.connect("talker") as session:
        talker = Talker(djinn.Generator(session, byte_model))
        os.kill(daemon.worker()["pid"], signal.SIGSTOP)  # long before it would be replaced
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(20) == 0
        talker.thread.join(60)
        assert isinstance(talker.error, djinn.Error)
        assert talker.seen < LONG["max_new_tokens"]
