"""djinnd as systemd starts it: a socket that listens already, and a place to say how it goes."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import djinn
import pytest
from private_daemon import BIN, DEADLINE_S


@contextmanager
def started(directory: Path, kind: int) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """djinnd with an activated socket of that kind, and what systemd hears of it."""
    with (
        socket.socket(socket.AF_UNIX, kind) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        listening.bind(str(directory / "activated.sock"))
        listening.listen(8)
        systemd.bind(str(directory / "notify"))
        systemd.settimeout(DEADLINE_S)
        # LISTEN_PID must be the process that becomes djinnd, and its sockets begin at 3.
        command = f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", command, "-", str(BIN / "djinnd"), "--user", "--threads", "1"],
            pass_fds=[listening.fileno()],
            env={**os.environ, "NOTIFY_SOCKET": str(directory / "notify")}
            | {"XDG_RUNTIME_DIR": str(directory)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, systemd
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def test_an_activated_socket_is_served_and_outlives_the_daemon(tmp_path: Path) -> None:
    with started(tmp_path, socket.SOCK_SEQPACKET) as (process, systemd):
        assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=0 sessions, 0 models")
        with djinn.connect(f"unix:{tmp_path}/activated.sock", "test", observer=True) as session:
            assert session.status()["sessions"] == 1
            assert systemd.recv(4096).startswith(b"STATUS=1 sessions")
        process.send_signal(signal.SIGTERM)
        while not (said := systemd.recv(4096)).startswith(b"STOPPING=1"):
            assert said.startswith(b"STATUS=")
        assert process.wait(DEADLINE_S) == 0
    assert (tmp_path / "activated.sock").exists()  # systemd's, for the next start
    assert not (tmp_path / "djinn").exists()


def test_a_socket_of_another_kind_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, socket.SOCK_STREAM) as (process, _):
        assert process.stderr is not None
        assert "ListenSequentialPacket" in process.stderr.read()
        assert process.wait(DEADLINE_S) == 1


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path) -> None:
    if len(str(tmp_path)) > 80:
        pytest.skip("the temporary directory's path is too long for a socket's address")
