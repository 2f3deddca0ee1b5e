# SPDX-License-Identifier: Apache-2.0
"""Programs on a terminal: a pty of a given size, and everything that was written to it."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

DEADLINE_S = 60.0


class Terminal:
    """The master's side of a pty; what programs on the other side wrote is collected."""

    def __init__(self, columns: int = 80) -> None:
        self.master, self.slave = pty.openpty()
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)
        self.written = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.hang_up()
        os.close(self.master)

    def hang_up(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
        self.slave = -1

    def read(self) -> bool:
        """Takes what has arrived, waiting a little; false once nobody can write any more."""
        if not select.select([self.master], [], [], 0.01)[0]:
            return True
        try:
            self.written += os.read(self.master, 65536)
        except OSError:  # Linux says EIO when the last slave is closed
            return False
        return True

    def read_until(self, condition: Callable[[bytes], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition(self.written):
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}: {self.written!r}"
            assert self.read(), f"the programs ended before: {what}: {self.written!r}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@dataclass(frozen=True)
class Shown:
    code: int
    text: str  # of the terminal, with its line ends as programs wrote them
    piped: str  # of the stream that was no terminal


def shown(
    command: Sequence[str],
    environment: dict[str, str],
    columns: int = 80,
    pipe: str | None = None,
) -> Shown:
    """Runs command on a terminal; pipe: "stdout" or "stderr" goes elsewhere."""
    with Terminal(columns) as terminal:
        streams = {"stdin": terminal.slave, "stdout": terminal.slave, "stderr": terminal.slave}
        if pipe is not None:
            streams[pipe] = subprocess.PIPE
        with subprocess.Popen(command, env=environment, **streams) as process:
            terminal.hang_up()
            while terminal.read():
                pass
            out = process.stdout or process.stderr
            piped = out.read().decode() if out else ""
            code = process.wait(DEADLINE_S)
        return Shown(code, terminal.written.decode().replace("\r\n", "\n"), piped)


@contextlib.contextmanager
def shell(command: Sequence[str], environment: dict[str, str]) -> Iterator[Terminal]:
    """An interactive shell on a terminal, which ends with the block."""
    with Terminal(200) as terminal:
        process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            env=environment,
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
        )
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
