# SPDX-License-Identifier: Apache-2.0
"""Two users and one daemon: who shares weights, who does not, and that nobody can change them."""

import copy
import ctypes
import errno
import fcntl
import grp
import mmap
import os
import pwd
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from other_user import User
from private_daemon import BIN, Daemon, running, wait_until
from safetensors.torch import save_file

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users"),
]

SETTLED_S = 2.2  # a file that changed later than that is not shared between users
LINEAR = """srg 1 "linear"
weight %w "w" : float32[64, 32]
input %x : float32[1, 32]
%y = aten::linear(%x, %w)
output %y
"""
# From <linux/fcntl.h> and <linux/falloc.h>, which Python does not show.
F_GET_SEALS, F_ADD_SEALS = 1034, 1033
SEALED = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
PUNCH_HOLE_KEEP_SIZE = 0x3

GROUP = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
FIRST = User("nobody", pwd.getpwnam("nobody").pw_uid, GROUP)
SECOND = User("daemon", pwd.getpwnam("daemon").pw_uid, GROUP)


class Proxy:
    """Stands between a client and djinnd, and swaps the descriptors of files that pass."""

    def __init__(self, daemon: Daemon, swapped: int) -> None:
        self.path = str(daemon.directory / "proxy.sock")
        self.host = f"unix:{self.path}"
        self.daemon = daemon
        self.swapped = swapped
        self.swaps = 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o777)
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Proxy":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(30)
        self.listener.close()
        os.unlink(self.path)
        os.close(self.swapped)

    def _serve(self) -> None:
        client, _ = self.listener.accept()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(str(self.daemon.directory / "djinnd.sock"))
        with client, server:
            other = {client: server, server: client}
            while True:
                for one in select.select(list(other), [], [])[0]:
                    data, fds, _, _ = socket.recv_fds(one, 65536, 64)
                    if not data:
                        return
                    sent = [self._swap(fd) for fd in fds] if one is client else fds
                    socket.send_fds(other[one], [data], sent)
                    for fd in fds:
                        os.close(fd)

    def _swap(self, fd: int) -> int:
        self.swaps += 1
        return self.swapped


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The programs, where every user may read them."""
    with tempfile.TemporaryDirectory(prefix="djinn-bin.") as directory:
        os.chmod(directory, 0o755)
        for name in ("djinnd", "djinn-worker", "djinn-loader"):
            shutil.copy(BIN / name, directory)
        yield Path(directory)


@pytest.fixture(scope="module")
def daemon(programs: Path) -> Iterator[Daemon]:
    with running(programs=programs, socket_group=GROUP) as one:
        os.chmod(one.directory, 0o755)
        yield one


@pytest.fixture
def first(daemon: Daemon) -> Iterator[djinn.Session]:
    with FIRST.acting():
        session = daemon.connect("first")
    yield session
    session.close()


@pytest.fixture
def second(daemon: Daemon) -> Iterator[djinn.Session]:
    with SECOND.acting():
        session = daemon.connect("second")
    yield session
    session.close()


@contextmanager
def readable_directory(base: str | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="djinn-share.", dir=base) as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def is_disk(path: Path) -> bool:
    """Whether the file system has a device of its own, which is what identity stands on."""
    return os.major(path.stat().st_dev) != 0


@pytest.fixture
def disk() -> Iterator[Path]:
    for base in (None, "/var/tmp", str(Path.home()), "/"):
        if is_disk(Path(base or tempfile.gettempdir())):
            with readable_directory(base) as directory:
                yield directory
            return
    pytest.skip("NO FILE SYSTEM ON A BLOCK DEVICE HERE (overlay?): sharing by identity not tested")


def write_model(path: Path, value: float = 1.0, rows: int = 64) -> Path:
    torch.manual_seed(2)
    save_file({"w": torch.randn(rows, 32) * value}, path)
    path.chmod(0o644)
    return path


def settle(path: Path) -> None:
    """Until the last change of the file lies long enough ago."""
    wait_until(lambda: time.time() - path.stat().st_ctime > SETTLED_S, "the file has settled")


def load(user: User, session: djinn.Session, path: Path) -> djinn.Model:
    with user.acting():
        return session.load(path)


def result(session: djinn.Session, model: djinn.Model) -> bytes:
    return session.run_once(LINEAR, model, x=np.ones((1, 32), np.float32))["y"].tobytes()


def test_two_users_have_a_worker_each(first: djinn.Session, second: djinn.Session) -> None:
    workers = first.status()["workers"] + second.status()["workers"]
    owners = {worker["owner"]: worker["pid"] for worker in workers}
    assert {FIRST.name, SECOND.name} <= set(owners)
    assert owners[FIRST.name] != owners[SECOND.name]


def test_the_same_file_on_disk_shares_its_weights(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "same.safetensors")
    settle(path)
    mine = load(FIRST, first, path)
    before = daemon.status()
    other = load(SECOND, second, path)
    after = daemon.status()
    assert other.was_resident
    assert other.id == mine.id
    for key in ("models", "memory_models_bytes", "bytes_read"):
        assert after[key] == before[key]
    assert result(first, mine) == result(second, other)
    assert weight_inodes(daemon, FIRST.name) & weight_inodes(daemon, SECOND.name)


def test_a_file_that_was_changed_is_not_shared(
    first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "changed.safetensors")
    settle(path)
    mine = load(FIRST, first, path)
    stamps = path.stat()
    write_model(path, value=2.0)
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # the time of change tells
    settle(path)
    other = load(SECOND, second, path)
    assert not other.was_resident
    assert other.id != mine.id
    assert result(second, other) != result(first, mine)
    again = load(FIRST, first, path)
    assert result(first, again) == result(second, other)


def test_a_file_that_changed_a_moment_ago_is_not_shared(
    first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    """It may change again within the same tick of the clock that stamps it."""
    path = write_model(disk / "fresh.safetensors")
    mine = load(FIRST, first, path)
    other = load(SECOND, second, path)
    assert other.id != mine.id


def test_a_file_that_the_second_may_not_read_is_not_shared(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "secret.safetensors")
    os.chown(path, FIRST.uid, -1)
    path.chmod(0o400)
    settle(path)
    mine = load(FIRST, first, path)
    with pytest.raises(djinn.LimitError) as refused:
        load(SECOND, second, path)
    assert refused.value.code == "permission_denied"
    assert mine.id not in {model["id"] for model in second.models()}


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_WRONLY], ids=["O_PATH", "O_WRONLY"])
def test_a_descriptor_that_cannot_be_read_from_opens_nothing(
    daemon: Daemon, first: djinn.Session, disk: Path, flags: int
) -> None:
    """Who may name or even write a file, but not read it, gets no weights for it."""
    path = write_model(disk / "named.safetensors")
    os.chown(path, FIRST.uid, -1)
    path.chmod(0o422)
    settle(path)
    mine = load(FIRST, first, path)
    decoy = write_model(disk / "decoy.safetensors", value=3.0)
    with SECOND.acting():
        swapped = os.open(path, flags)
    with Proxy(daemon, swapped) as proxy, SECOND.acting():
        session = djinn.connect(proxy.host, "swapper")
        with session, pytest.raises(djinn.Error):
            session.load(decoy)
        assert proxy.swaps == 1
    (model,) = (m for m in daemon.observer.models() if m["id"] == mine.id)
    assert model["leases"] == 1


def test_a_file_on_tmpfs_is_not_shared_by_identity(
    first: djinn.Session, second: djinn.Session
) -> None:
    if not Path("/dev/shm").is_dir() or is_disk(Path("/dev/shm")):
        pytest.skip("NO TMPFS HERE: that it is not shared was not tested")
    with readable_directory("/dev/shm") as directory:
        path = write_model(directory / "memory.safetensors")
        settle(path)
        mine = load(FIRST, first, path)
        other = load(SECOND, second, path)
        assert not other.was_resident
        assert other.id != mine.id
        assert result(first, mine) == result(second, other)


def test_a_user_shares_a_file_on_tmpfs_with_themselves(
    daemon: Daemon, first: djinn.Session
) -> None:
    with readable_directory("/dev/shm") as directory:
        path = write_model(directory / "own.safetensors")
        mine = load(FIRST, first, path)
        with FIRST.acting():
            another = daemon.connect("another")
        with another:
            assert load(FIRST, another, path).id == mine.id


def test_another_users_sessions_and_models_are_not_seen(
    first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    mine = load(FIRST, first, write_model(disk / "mine.safetensors"))
    assert {session["owner"] for session in second.sessions()} == {SECOND.name}
    assert mine.id not in {model["id"] for model in second.models()}
    with pytest.raises(djinn.HandleError):
        second.raw.unload_model(mine.handle)
    stolen = copy.copy(mine)
    stolen._session = second
    with pytest.raises(djinn.Error):
        second.run_once(LINEAR, stolen, x=np.ones((1, 32), np.float32))


# --- sealed


def worker_pid(daemon: Daemon, owner: str) -> int:
    (pid,) = (w["pid"] for w in daemon.status()["workers"] if w["owner"] == owner)
    return pid


def weight_inodes(daemon: Daemon, owner: str) -> set[str]:
    """The memory files of weights that a user's worker has mapped."""
    maps = Path(f"/proc/{worker_pid(daemon, owner)}/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "memfd:djinn-weights" in line}


def writes(fd: int, length: int) -> dict[str, Callable[[], object]]:
    """Every way to change bytes behind a descriptor, or to become able to."""
    libc = ctypes.CDLL(None, use_errno=True)

    def punch() -> None:
        mode = ctypes.c_int(PUNCH_HOLE_KEEP_SIZE)
        if libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    return {
        "pwrite": lambda: os.pwrite(fd, b"x", 0),
        "append": lambda: os.pwrite(fd, b"x", length),
        "map": lambda: mmap.mmap(
            fd, min(4096, length), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        ),
        "shrink": lambda: os.ftruncate(fd, 0),
        "grow": lambda: os.ftruncate(fd, length + 4096),
        "punch": punch,
        "seal": lambda: fcntl.fcntl(fd, F_ADD_SEALS, 0x10),
    }


def check_sealed(path: str) -> None:
    """Opens a file of /proc for writing, as only root and the owner can, and fails to write."""
    fd = os.open(path, os.O_RDWR)
    try:
        length = os.fstat(fd).st_size
        assert fcntl.fcntl(fd, F_GET_SEALS) & SEALED == SEALED, path
        for name, write in writes(fd, length).items():
            with pytest.raises(OSError) as refused:
                write()
            assert refused.value.errno == errno.EPERM, (path, name, refused.value)
    finally:
        os.close(fd)


def test_no_descriptor_or_mapping_of_a_worker_lets_weights_be_written(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "sealed.safetensors", rows=4096)
    settle(path)
    models = load(FIRST, first, path), load(SECOND, second, path)
    sessions = first, second
    linear = LINEAR.replace("64", "4096")

    def results() -> list[bytes]:
        x = np.ones((1, 32), np.float32)
        pairs = zip(sessions, models, strict=True)
        return [s.run_once(linear, m, x=x)["y"].tobytes() for s, m in pairs]

    before = results()
    for owner in (FIRST.name, SECOND.name):
        pid = worker_pid(daemon, owner)
        mapped = [
            line.split()
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "djinn-weights" in line
        ]
        assert mapped
        for span, permissions, *_ in mapped:
            assert permissions == "r--p", "a private mapping that cannot be written"
            bounds = "-".join(f"{int(end, 16):x}" for end in span.split("-"))
            check_sealed(f"/proc/{pid}/map_files/{bounds}")
        check_descriptors(pid)
    check_descriptors(daemon.process.pid)
    assert results() == before


def check_descriptors(pid: int) -> None:
    """Every descriptor of weights, and of the tables that say where they lie."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if any(name in os.readlink(fd) for name in ("djinn-weights", "djinn-manifest")):
            check_sealed(str(fd))


def test_a_client_cannot_write_what_it_gets_of_a_model(first: djinn.Session, disk: Path) -> None:
    """A client gets the table of tensors, and no weights."""
    before = set(Path("/proc/self/maps").read_text().splitlines())
    load(FIRST, first, write_model(disk / "client.safetensors"))
    now = set(Path("/proc/self/maps").read_text().splitlines()) - before
    assert not [line for line in now if "djinn-weights" in line]
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _lives(fd)]
    assert not [link for link in links if "djinn-weights" in link]


def _lives(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")
