# SPDX-License-Identifier: Apache-2.0
"""A djinn-gate with a door on this host, its authority, and profiles of who may come in."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from private_daemon import BIN, wait_until


class Door:
    """A gate that listens. djinn://NAME leads to it in an environment whose XDG_CONFIG_HOME is
    `home`, once NAME was enrolled. To a djinnd with --gate-socket who comes is whom their
    certificate names; as_user: they are the user of the tests."""

    def __init__(self, folder: Path, djinnd: str, home: Path, as_user: bool = False) -> None:
        self.credentials, self.home = folder / "gate", home
        self.host = ""
        self.authority("init", "--trust-domain", "lab", "--address", "127.0.0.1:1")
        self.said = folder / "gate.log"
        command = [BIN / "djinn-gate", "--listen", "127.0.0.1:0", "--host", djinnd]
        command += ["--as-user"] if as_user else []
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [*command, "--credentials", self.credentials], stderr=said
            )
        wait_until(lambda: "listens at port" in self.log(), "the gate listens")
        found = re.search(r"listens at port (\d+)", self.log())
        assert found is not None
        self.port = int(found[1])

    def log(self) -> str:
        return self.said.read_text()

    def authority(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [BIN / "djinn-gate-ca", *arguments, "--credentials", self.credentials],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def enrol(self, who: str, name: str = "box", port: int = 0) -> Path:
        """Makes a profile of the gate, NAME, for somebody; gives its file. `host` is that. Another
        port leads there, too."""
        hosts = self.home / "djinn" / "hosts"
        hosts.mkdir(parents=True, exist_ok=True)
        profile = hosts / f"{name}.pem"
        self.host = f"djinn://{name}"
        address = f"127.0.0.1:{port or self.port}"
        self.authority("enrol", who, "--address", address, "--out", str(profile))
        return profile

    def revoke(self, who: str) -> None:
        self.authority("revoke", who)
        before = self.log().count("anew")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log().count("anew") > before, "the gate has read them")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def door(folder: Path, djinnd: str, as_user: bool = False) -> Iterator[Door]:
    one = Door(folder, djinnd, folder, as_user)
    try:
        with mock.patch.dict(os.environ, XDG_CONFIG_HOME=str(folder)):
            yield one
    finally:
        one.stop()


__all__ = ["Door", "door"]
