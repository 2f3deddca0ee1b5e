# SPDX-License-Identifier: Apache-2.0
"""What stands for systemd in tests: it listens for djinnd, hears how it goes, and keeps descriptors
for the next one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import djinn
from private_daemon import BIN, DEADLINE_S

# Descriptors that a process is passed begin at 3, and LISTEN_PID is the process itself.
LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in sys.argv[1].split(",")]
for number, fd in enumerate(high, 3):
    os.dup2(fd, number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = str(len(high))
os.environ["LISTEN_FDNAMES"] = sys.argv[2]
os.execv(sys.argv[3], sys.argv[3:])
"""


def write_config(root: Path, text: str) -> Path:
    """Where a djinnd looks that is started with --root."""
    path = root / "etc/djinn/djinnd.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Systemd:
    def __init__(
        self,
        directory: Path,
        kind: socket.SocketKind = socket.SOCK_SEQPACKET,
        bus: str | None = None,
        store_max: int = 8192,
    ) -> None:
        self.directory = directory
        # As FileDescriptorStoreMax=: what is given beyond it is closed.
        self.store_max = store_max
        self.turned_away: list[str] = []
        self.forgotten: list[str] = []
        self.bus = bus or f"unix:path={directory}/no-bus"
        self.host = f"unix:{directory}/djinnd.sock"
        self.listening = socket.socket(socket.AF_UNIX, kind)
        self.listening.bind(str(directory / "djinnd.sock"))
        self.listening.listen(8)
        # As djinnd-metrics.socket has it: passed when somebody wants it.
        self.metrics: socket.socket | None = None
        self.gates: socket.socket | None = None  # likewise, for djinn-gate
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(directory / "notify"))
        self.store: dict[str, int] = {}
        self.last_words: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self.stderr: int = subprocess.PIPE

    def listen_for_metrics(self) -> str:
        """Its address, HOST:PORT."""
        self.metrics = socket.create_server(("127.0.0.1", 0))
        host, port = self.metrics.getsockname()
        return f"{host}:{port}"

    def listen_for_gates(self) -> None:
        self.gates = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.gates.bind(str(self.directory / "gate.sock"))
        self.gates.listen(8)

    def start(self, *options: str) -> None:
        passed = {"djinnd.socket": self.listening.fileno(), **self.store}
        if self.metrics is not None:
            passed["metrics"] = self.metrics.fileno()
        if self.gates is not None:
            passed["gate"] = self.gates.fileno()
        numbers = ",".join(str(fd) for fd in passed.values())
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                numbers,
                ":".join(passed),
                str(BIN / "djinnd"),
                *options,
            ],
            pass_fds=list(passed.values()),
            env=os.environ
            | {"NOTIFY_SOCKET": str(self.directory / "notify")}
            | {"FDSTORE": str(self.store_max)}
            | {"XDG_RUNTIME_DIR": str(self.directory)}
            | {"XDG_CACHE_HOME": str(self.directory / "cache")}  # "djinn" in it is told from ours
            | {"XDG_STATE_HOME": str(self.directory / "state")}
            | {"DBUS_SYSTEM_BUS_ADDRESS": self.bus, "DBUS_SESSION_BUS_ADDRESS": self.bus},
            stderr=self.stderr,
            text=True,
        )

    def hear(self, beginning: str, deadline_s: float = DEADLINE_S) -> str:
        """The next message that begins so; those before it are carried out."""
        self.notify.settimeout(deadline_s)
        while True:
            message, fds, _, _ = socket.recv_fds(self.notify, 4096, 8)
            text = message.decode()
            self._carry_out(text, fds)
            if text.startswith(beginning):
                return text

    def hear_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.hear("")

    def _carry_out(self, text: str, fds: list[int]) -> None:
        fields = dict(line.split("=", 1) for line in text.splitlines())
        if fields.get("FDSTORE") == "1" and len(self.store) >= self.store_max:
            self.turned_away.append(fields["FDNAME"])
            os.close(fds[0])
        elif fields.get("FDSTORE") == "1":
            self.store[fields["FDNAME"]] = fds[0]
        elif fields.get("FDSTOREREMOVE") == "1":
            self.forget(fields["FDNAME"])

    def forget(self, name: str) -> None:
        self.forgotten.append(name)
        if name in self.store:
            os.close(self.store.pop(name))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code; all that it said last is carried out, and is in last_words."""
        assert self.process is not None
        self.process.send_signal(how)
        self.last_words = []
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:  # it has not ended before it is heard
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError):
                self.last_words.append(self.hear("", deadline_s=0.05))
        with contextlib.suppress(BlockingIOError):
            while True:
                self.last_words.append(self.hear("", deadline_s=0))
        return self.process.wait()

    def stderr_line(self, part: str) -> str:
        """The next line that has the part."""
        assert self.process is not None and self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            if part in line:
                return line
        raise AssertionError(f"djinnd ended, and never said {part!r}")

    def connect(self, name: str = "test", **options: int) -> djinn.Session:
        return djinn.connect(self.host, name, **options)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stderr is not None:
                self.process.stderr.close()
        for fd in self.store.values():
            os.close(fd)
        self.listening.close()
        self.notify.close()
        for one in (self.metrics, self.gates):
            if one is not None:
                one.close()
