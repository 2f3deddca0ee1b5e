# SPDX-License-Identifier: Apache-2.0
"""djinnctl as the tests call it: against one daemon, with what it said and how it ended."""

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Protocol

from private_daemon import BIN, wait_until


class Host(Protocol):
    """A djinnd, by whomever it was started."""

    @property
    def host(self) -> str: ...


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: str

    def items(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        return json.loads(self.out)["items"]

    def table(self) -> list[list[str]]:
        assert self.code == 0, self.err
        return [line.split() for line in self.out.decode().splitlines()]

    def text(self) -> str:
        assert self.code == 0, self.err
        return self.out.decode().strip()


def ctl(daemon: Host, *words: str, stdout: int = subprocess.PIPE) -> Ended:
    done = subprocess.run(
        [str(BIN / "djinnctl"), *words],
        env={**os.environ, "DJINN_HOST": daemon.host},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout or b"", done.stderr.decode())


def wait_until_hashed(daemon: Host) -> None:
    wait_until(
        lambda: all(model["sha256"] for model in ctl(daemon, "ps", "-j").items()),
        "all models are hashed",
    )


def memory_in_use(daemon: Host) -> int:
    """What is granted, less what lanes keep for their next runs and leave to whoever asks."""
    pools = ctl(daemon, "mem", "-j").items()
    kept = sum(pool["cached_bytes"] for pool in pools if pool["pool"] == "lanes")
    return int(daemon.status()["memory_granted_bytes"]) - int(kept)


def events_of(daemon: Host, kind: str) -> list[dict[str, Any]]:
    """The recent ones of a kind."""
    records = filter(str.strip, ctl(daemon, "events", "-j").out.decode().split("\x1e"))
    told = [event for record in records for event in json.loads(record)["items"]]
    return [event for event in told if event["event"] == kind]
