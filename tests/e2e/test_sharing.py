# SPDX-License-Identifier: Apache-2.0
"""Two users and one daemon: who shares weights, who does not, and that nobody can change them."""

import copy
import ctypes
import errno
import fcntl
import grp
import itertools
import mmap
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl, events_of, wait_until_hashed
from mute_files import MUTE_S, MuteFiles, mounted, require_fuse
from other_user import User
from private_daemon import BIN, DEADLINE_S, Daemon, running, wait_until
from proxy import Proxy
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
# Connects and hangs up until it is killed, and says so when it has begun.
HANG_UPS = """
import socket, sys
for count in range(1 << 60):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect(sys.argv[1])
    if count == 100:
        print("begun", flush=True)
"""
# From <linux/fcntl.h> and <linux/falloc.h>, which Python does not show.
F_GET_SEALS, F_ADD_SEALS = 1034, 1033
SEALED = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
PUNCH_HOLE_KEEP_SIZE = 0x3

GROUP = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
FILES_PER_USER, FILES_PER_MODEL = 8192, 256
FIRST = User("nobody", pwd.getpwnam("nobody").pw_uid, GROUP)
SECOND = User("daemon", pwd.getpwnam("daemon").pw_uid, GROUP)


class Swapper(Proxy):
    """Gives djinnd another descriptor for each that the client sends."""

    def __init__(self, daemon: Daemon, swapped: int) -> None:
        self.swapped = swapped
        self.swaps = 0
        super().__init__(daemon.host)

    def close(self) -> None:
        super().close()
        os.close(self.swapped)

    def changed(self, data: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        self.swaps += len(fds)
        return data, [self.swapped] * len(fds)


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


def load(user: User, session: djinn.Session, path: Path | list[Path]) -> djinn.Model:
    with user.acting():
        return session.load(path)


def result(session: djinn.Session, model: djinn.Model) -> bytes:
    return session.run_once(LINEAR, model, x=np.ones((1, 32), np.float32))["y"].tobytes()


@contextmanager
def hanging_up(daemon: Daemon, user: User, processes: int) -> Iterator[None]:
    command = [sys.executable, "-c", HANG_UPS, str(daemon.directory / "djinnd.sock")]
    with ExitStack() as running_too:
        for _ in range(processes):
            one = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                user=user.uid,
                group=user.group,
                extra_groups=user.more_groups,
            )
            running_too.enter_context(one)
            running_too.callback(one.kill)
            assert one.stdout is not None
            assert one.stdout.readline() == "begun\n"
        yield


def test_who_connects_and_hangs_up_keeps_no_other_user_out(daemon: Daemon) -> None:
    """The kernel's queue of connections is one for all."""
    with hanging_up(daemon, FIRST, 8), SECOND.acting():
        for _ in range(100):
            daemon.connect("neighbour", observer=True).close()


def test_a_user_keeps_so_many_files_open_and_no_other_is_bound_by_it(
    programs: Path, disk: Path
) -> None:
    files = [disk / f"{number}.safetensors" for number in range(FILES_PER_MODEL)]
    for number, file in enumerate(files):
        save_file({f"w{number}": torch.ones(1)}, file)
        file.chmod(0o644)
    with running(programs=programs, socket_group=GROUP) as daemon, ExitStack() as stack:
        os.chmod(daemon.directory, 0o755)
        with FIRST.acting():
            hoarder = stack.enter_context(daemon.connect("hoarder"))
        with SECOND.acting():
            neighbour = stack.enter_context(daemon.connect("neighbour"))
        # The same files in another order are another model.
        models = [
            load(FIRST, hoarder, files[turn:] + files[:turn])
            for turn in range(FILES_PER_USER // FILES_PER_MODEL)
        ]
        with pytest.raises(djinn.Error, match=f"more than {FILES_PER_USER}") as refused:
            load(FIRST, hoarder, files[:1])
        assert refused.value.code == "limit_exceeded"
        assert load(SECOND, neighbour, files[:2]).bytes > 0
        models[0].close()
        hoarder.unload(models[0])
        assert not load(FIRST, hoarder, files[:1]).was_resident


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


def test_a_file_that_changed_a_moment_ago_is_shared_when_its_bytes_were_compared(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    """Its times prove nothing: it may have changed again within the tick of the clock."""
    path = write_model(disk / "fresh.safetensors", value=12.0)
    mine = load(FIRST, first, path)
    before = daemon.status()
    other = load(SECOND, second, path)
    after = daemon.status()
    assert other.id == mine.id
    assert other.was_resident
    assert after["compared_opens"] == before["compared_opens"] + 1
    assert after["bytes_read"] == before["bytes_read"]
    assert result(first, mine) == result(second, other)


def test_equal_files_of_two_users_are_one_model_and_their_own_copies_are_two(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    paths = [write_model(disk / f"copy-{i}.safetensors", value=5.0) for i in range(3)]
    mine = load(FIRST, first, paths[0])
    assert load(SECOND, second, paths[1]).id == mine.id
    assert load(FIRST, first, paths[2]).id != mine.id


def evict(daemon: Daemon, model: str) -> None:
    wait_until_hashed(daemon)  # else it could not come back
    assert ctl(daemon, "evict", "--force", model).code == 0


def test_a_model_comes_back_although_the_file_of_who_opened_it_first_has_changed(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    paths = [write_model(disk / f"held-{i}.safetensors", value=11.0) for i in range(2)]
    mine, other = load(FIRST, first, paths[0]), load(SECOND, second, paths[1])
    assert other.id == mine.id
    before = result(second, other)
    evict(daemon, mine.id)
    with paths[0].open("ab") as file:
        file.write(b"x")
    assert result(second, other) == before
    assert result(first, mine) == before
    evict(daemon, mine.id)
    assert result(first, mine) == before
    # Nobody is left whose files it could come from.
    evict(daemon, mine.id)
    with paths[1].open("ab") as file:
        file.write(b"x")
    for session, model in ((first, mine), (second, other)):
        with pytest.raises(djinn.IntegrityError):
            result(session, model)


OTHER_VALUES = itertools.count(20.0)  # nobody else's model holds the same bytes


@dataclass
class Held:
    """A model that two users hold, one of them through a file system that may say nothing."""

    daemon: Daemon
    files: MuteFiles
    served: Path
    asked: Path
    id: str
    runs: dict[str, Callable[[], bytes]]  # by whose files: `served` and `own`
    results: bytes

    def evict(self) -> None:
        evict(self.daemon, self.id)
        self.served.open("rb").close()  # the kernel forgets its pages


@contextmanager
def held(
    daemon: Daemon,
    holders: dict[str, djinn.Session],
    own: Path,
    directory: Path,
    rows: int,
) -> Iterator[Held]:
    """By whose files, in the order in which they open them."""
    require_fuse("a file that says nothing")
    for name in ("shown", "mounted"):
        (directory / name).mkdir()
    write_model(own, value=next(OTHER_VALUES), rows=rows)
    shutil.copy(own, directory / "shown")
    paths = {"served": directory / "mounted" / own.name, "own": own}
    linear = LINEAR.replace("64", str(rows))
    x = np.ones((1, 32), np.float32)
    with mounted(directory / "mounted", directory / "shown") as files:
        models = {whose: session.load(paths[whose]) for whose, session in holders.items()}
        (id,) = {model.id for model in models.values()}
        runs = {
            whose: lambda session=session, model=models[whose]: session.run_once(
                linear, model, x=x
            )["y"].tobytes()
            for whose, session in holders.items()
        }
        one = Held(
            daemon, files, paths["served"], directory / "shown" / "asked", id, runs, runs["own"]()
        )
        try:
            yield one
        finally:
            files.answer()


HALF_UNREAD = 16384  # rows of a file whose second half no readahead brings with the header


def test_who_has_files_of_their_own_does_not_ask_those_of_another_who_opened_first(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path, tmp_path: Path
) -> None:
    own = disk / "asks.safetensors"
    with held(daemon, {"served": first, "own": second}, own, tmp_path, HALF_UNREAD) as one:
        one.evict()
        one.files.fall_silent()
        assert one.runs["own"]() == one.results
        assert not one.asked.exists()


def test_who_waits_for_silent_files_of_another_gets_the_model_whatever_else_returns_meanwhile(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path, tmp_path: Path
) -> None:
    own = disk / "waits.safetensors"
    with (
        held(daemon, {"served": first, "own": second}, own, tmp_path, HALF_UNREAD) as one,
        daemon.connect("busy") as busy,
        ThreadPoolExecutor(2) as pool,
    ):
        small = busy.load(write_model(disk / "small.safetensors", value=14.0))
        one.evict()
        one.files.fall_silent()
        began = time.monotonic()
        runs = [pool.submit(one.runs["served"])]
        wait_until(one.asked.exists, "the owner's files are asked")
        runs.append(pool.submit(one.runs["own"]))
        while not all(run.done() for run in runs) and time.monotonic() - began < MUTE_S / 2:
            evict(daemon, small.id)
            result(busy, small)
        one.files.answer()
        assert [run.result(DEADLINE_S) for run in runs] == [one.results] * 2
        assert time.monotonic() - began < MUTE_S / 2, "nobody waited until it answered"
        assert owner_of(daemon, one.id) == FIRST.name


def owner_of(daemon: Daemon, model: str) -> str:
    (owner,) = (m["owner"] for m in ctl(daemon, "ps", "-j").items() if m["id"] == model)
    return str(owner)


def test_who_has_changed_their_own_file_waits_for_silent_ones_of_another_for_seconds_only(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path, tmp_path: Path
) -> None:
    own = disk / "changes.safetensors"
    with held(daemon, {"own": first, "served": second}, own, tmp_path, HALF_UNREAD) as one:
        one.evict()
        with own.open("ab") as file:
            file.write(b"x")
        assert one.runs["own"]() == one.results, "it is read from the other's"
        assert owner_of(daemon, one.id) == SECOND.name
        one.evict()
        one.files.fall_silent()
        began = time.monotonic()
        with pytest.raises(djinn.Error) as failed:
            one.runs["own"]()
        assert failed.value.code == "timeout"
        assert time.monotonic() - began < MUTE_S / 2
        one.files.answer()
        assert one.runs["own"]() == one.results, "it is tried again"


def test_a_model_of_most_of_the_memory_comes_back_from_the_next_files_while_a_loader_is_stuck(
    programs: Path, disk: Path, tmp_path: Path
) -> None:
    rows = (80 << 20) // (32 * 4)
    with running("--memory", str(128 << 20), programs=programs, socket_group=GROUP) as daemon:
        os.chmod(daemon.directory, 0o755)
        with ExitStack() as stack:
            sessions = {}
            for whose, user in (("served", FIRST), ("own", SECOND)):
                with user.acting():
                    sessions[whose] = stack.enter_context(daemon.connect(whose))
            one = stack.enter_context(
                held(daemon, sessions, disk / "large.safetensors", tmp_path, rows)
            )
            pool = stack.enter_context(ThreadPoolExecutor(1))
            one.evict()
            one.files.fall_silent()
            waits = pool.submit(one.runs["served"])
            wait_until(one.asked.exists, "the owner's files are asked")
            began = time.monotonic()
            assert one.runs["own"]() == one.results
            assert time.monotonic() - began < MUTE_S / 2, "nobody waited until it answered"
            assert waits.result(DEADLINE_S) == one.results
            assert daemon.status()["memory_models_bytes"] < 2 * own_bytes(rows)


def own_bytes(rows: int) -> int:
    return rows * 32 * 4


def numbers_of(daemon: Daemon, kind: str) -> set[int]:
    """Of the events that are still kept: older ones make room for newer ones."""
    return {event["number"] for event in events_of(daemon, kind)}


def test_a_slow_file_is_read_to_its_end(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path, tmp_path: Path
) -> None:
    rows = (32 << 20) // (32 * 4)  # of which half is slow, for longer than anybody may be silent
    own = disk / "slow.safetensors"
    with held(daemon, {"served": first, "own": second}, own, tmp_path, rows) as one:
        one.evict()
        one.files.slow_down()
        before = numbers_of(daemon, "model-failed")
        assert one.runs["served"]() == one.results
        assert numbers_of(daemon, "model-failed") <= before, "from the slow one"


def test_files_of_one_size_that_differ_in_a_byte_are_two_models(
    daemon: Daemon, first: djinn.Session, second: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "one.safetensors", value=6.0, rows=4096)
    linear = LINEAR.replace("64", "4096")
    mine = load(FIRST, first, path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    (disk / "other.safetensors").write_bytes(data)
    other = load(SECOND, second, disk / "other.safetensors")
    assert other.id != mine.id
    assert not other.was_resident
    x = np.ones((1, 32), np.float32)
    results = [s.run_once(linear, m, x=x)["y"] for s, m in ((first, mine), (second, other))]
    assert results[0].tobytes() != results[1].tobytes()


ATTEMPTS = 5  # pages that the kernel has written out meanwhile are clean, and not what is meant


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """A file that is mapped for writing, with dirty pages: writing to them moves no time."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = memory[at]
        yield memory


def times(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_mtime_ns, info.st_ctime_ns


def change(memory: mmap.mmap) -> None:
    """The last weight."""
    memory[-1] ^= 0x40


@pytest.mark.parametrize("user", [FIRST, SECOND], ids=["same_user", "another_user"])
def test_what_is_written_through_a_mapping_is_not_missed(
    first: djinn.Session, second: djinn.Session, disk: Path, user: User
) -> None:
    session = first if user is FIRST else second
    for number in range(ATTEMPTS):
        path = write_model(disk / f"mapped-{user.name}-{number}.safetensors", value=7.0)
        with mapped(path) as memory:
            settle(path)
            mine = load(FIRST, first, path)
            before = times(path)
            change(memory)
            is_silent = times(path) == before
            again = load(user, session, path)
            assert again.id != mine.id
            assert result(session, again) != result(first, mine)
        if is_silent:
            return
    pytest.fail("each time the kernel wrote the pages out first, and a time told of the change")


def test_a_file_that_somebody_may_write_is_shared_by_its_bytes(
    daemon: Daemon, first: djinn.Session, disk: Path
) -> None:
    path = write_model(disk / "writable.safetensors", value=8.0)
    with mapped(path):
        settle(path)
        mine = load(FIRST, first, path)
        before = daemon.status()["compared_opens"]
        assert load(FIRST, first, path).id == mine.id
        assert daemon.status()["compared_opens"] == before + 1
    # Nobody writes any more: what is read now proves it, and the next look is enough.
    assert load(FIRST, first, path).id == mine.id
    before = daemon.status()["compared_opens"]
    assert load(FIRST, first, path).id == mine.id
    assert daemon.status()["compared_opens"] == before


def test_a_file_that_was_read_just_after_it_was_written_is_shared_by_its_bytes(
    daemon: Daemon, first: djinn.Session, disk: Path
) -> None:
    """What is written within the same tick of the clock moves no time."""
    path = disk / "young.safetensors"
    while True:  # on a busy machine the file may have settled before it was read
        write_model(path, value=10.0)
        mine = load(FIRST, first, path)
        if time.time() - path.stat().st_ctime < SETTLED_S:
            break
    before = daemon.status()["compared_opens"]
    assert load(FIRST, first, path).id == mine.id
    assert daemon.status()["compared_opens"] == before + 1


def test_a_writer_is_not_kept_waiting_by_a_resident_model(first: djinn.Session, disk: Path) -> None:
    path = write_model(disk / "later.safetensors", value=9.0)
    load(FIRST, first, path)
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # would say EWOULDBLOCK for a lease


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
    with Swapper(daemon, swapped) as proxy, SECOND.acting():
        session = djinn.connect(proxy.host, "swapper")
        with session, pytest.raises(djinn.Error):
            session.load(decoy)
        assert proxy.swaps == 1
    (model,) = (m for m in daemon.observer.models() if m["id"] == mine.id)
    assert model["leases"] == 1


def test_a_file_on_tmpfs_is_shared_by_its_bytes(
    daemon: Daemon, first: djinn.Session, second: djinn.Session
) -> None:
    if not Path("/dev/shm").is_dir() or is_disk(Path("/dev/shm")):
        pytest.skip("NO TMPFS HERE: that it is not shared by identity was not tested")
    with readable_directory("/dev/shm") as directory:
        path = write_model(directory / "memory.safetensors", value=10.0)
        mine = load(FIRST, first, path)
        before = daemon.status()["compared_opens"]
        other = load(SECOND, second, path)
        assert other.id == mine.id
        assert daemon.status()["compared_opens"] == before + 1
        assert result(first, mine) == result(second, other)
        # A mapping that is read first is written without a time that moves.
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            stamps = times(path)
            change(memory)
            assert times(path) == stamps
        again = load(FIRST, first, path)
        assert again.id != mine.id
        assert result(first, again) != result(first, mine)


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
    """A client is told the table of tensors, and gets a descriptor of nothing."""
    before = set(Path("/proc/self/maps").read_text().splitlines())
    load(FIRST, first, write_model(disk / "client.safetensors"))
    now = set(Path("/proc/self/maps").read_text().splitlines()) - before
    assert not [line for line in now if "djinn-weights" in line]
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _lives(fd)]
    assert not [link for link in links if "djinn-weights" in link or "djinn-manifest" in link]


def _lives(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")
