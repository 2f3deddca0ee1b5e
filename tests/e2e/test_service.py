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
def started(
    directory: Path, kind: socket.SocketKind, *options: str
) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
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
            ["bash", "-c", command, "-", str(BIN / "djinnd"), *(options or ("--user",))],
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
        hear(systemd, b"STOPPING=1")
        assert process.wait(DEADLINE_S) == 0
    assert (tmp_path / "activated.sock").exists()  # systemd's, for the next start
    assert not (tmp_path / "djinn").exists()


def test_a_socket_of_another_kind_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, socket.SOCK_STREAM) as (process, _):
        assert process.stderr is not None
        assert "ListenSequentialPacket" in process.stderr.read()
        assert process.wait(DEADLINE_S) == 1


def hear(systemd: socket.socket, beginning: bytes) -> bytes:
    while not (said := systemd.recv(4096)).startswith(beginning):
        pass
    return said


def write_config(root: Path, text: str) -> Path:
    path = root / "etc/djinn/djinnd.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_reload_takes_up_a_good_configuration_and_leaves_a_bad_one(tmp_path: Path) -> None:
    write_config(tmp_path, "lane.threads = 1\n")
    with started(tmp_path, socket.SOCK_SEQPACKET, "--root", str(tmp_path)) as (process, systemd):
        assert process.stderr is not None
        hear(systemd, b"READY=1")
        for text, outcome in (
            ('lane.threads = 2\nmemory.session_quota = "1GiB"', "the configuration is reloaded"),
            ("memory.session_quota = 1.5", "the configuration is as it was"),
            ('memory.session_quota = "2GiB"', "the configuration is reloaded"),
        ):
            write_config(tmp_path, text)
            process.send_signal(signal.SIGHUP)
            hear(systemd, b"RELOADING=1")
            hear(systemd, b"READY=1")
            lines = iter(process.stderr.readline, "")
            assert any(outcome in line for line in lines)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def check(root: Path, option: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "djinnd"), option, "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_configuration_can_be_checked_and_shown(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[lane]\nthreads = 7\nspeed = 9\n")
    found = check(tmp_path, "--show-config")
    assert found.returncode == 0
    assert f"lane.threads = 7  # {path}:2\n" in found.stdout
    assert found.stderr == f"djinnd: {path}:3: warning: lane.speed is no key; it is ignored\n"
    write_config(tmp_path, "[lane]\nthreads = 0\n")
    wrong = check(tmp_path, "--check-config")
    assert wrong.returncode == 1
    assert f"{path}:2: error: lane.threads: write a number from 1 to 1024" in wrong.stderr
    started_anyway = check(tmp_path, "--threads=1")
    assert started_anyway.returncode == 1


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path) -> None:
    if len(str(tmp_path)) > 80:
        pytest.skip("the temporary directory's path is too long for a socket's address")
