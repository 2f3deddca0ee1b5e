# SPDX-License-Identifier: Apache-2.0
"""Two users open one file that nobody has read yet, and the loader that reads it for both, from
the files of the first, is killed or says nothing more."""

import ctypes
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import djinn
import pytest
import torch
from command_line import ctl
from private_daemon import BIN, DEADLINE_S, Daemon, children_named, running, wait_until
from safetensors.torch import save_file
from test_sharing import FIRST, GROUP, SECOND, is_disk, settle

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users"),
]

FILE_BYTES = 256 << 20  # which a loader reads for a tenth of a second at least
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # of ptrace(2)
ALL_THREADS = 0x40000000  # of wait(2)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="djinn-bin.") as directory:
        os.chmod(directory, 0o755)
        for name in ("djinnd", "djinn-worker", "djinn-loader"):
            shutil.copy(BIN / name, directory)
        with running(programs=Path(directory), socket_group=GROUP) as one:
            os.chmod(one.directory, 0o755)
            yield one


@pytest.fixture
def file(request: pytest.FixtureRequest) -> Iterator[Path]:
    """One that was not read: not to be found in the page cache."""
    for base in (tempfile.gettempdir(), "/var/tmp", str(Path.home()), "/"):
        if not is_disk(Path(base)):
            continue
        with tempfile.TemporaryDirectory(prefix="djinn-first.", dir=base) as directory:
            os.chmod(directory, 0o755)
            path = Path(directory) / "model.safetensors"
            value = float(len(request.node.name))  # no test's bytes are another's
            save_file({"w": torch.full((FILE_BYTES // 4,), value)}, path)
            path.chmod(0o644)
            with path.open("rb") as written:
                os.fsync(written.fileno())
                os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            settle(path)
            yield path
            return
    pytest.skip("NO FILE SYSTEM ON A BLOCK DEVICE HERE (overlay?): nothing is shared by looks")


def ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class Held:
    """A process that stands still, and no SIGCONT helps it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        for thread in self.threads:
            ptrace(SEIZE, thread)
            ptrace(INTERRUPT, thread)
            os.waitpid(thread, ALL_THREADS)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        for thread in reversed(self.threads):  # its parent hears of it after us
            os.waitpid(thread, ALL_THREADS)
        self.threads = []

    def let_go(self) -> None:
        for thread in self.threads:
            ptrace(DETACH, thread)
        self.threads = []


@dataclass(frozen=True)
class Reading:
    """One loader reads for two, and is held in the middle."""

    loader: Held
    first: Future[djinn.Model]
    second: Future[djinn.Model]


def loading(daemon: Daemon) -> list[int]:
    """Of each model that is being loaded, how many sessions wait for it."""
    models = ctl(daemon, "ps", "-j").items()
    return [one["leases"] for one in models if one["state"] == "loading"]


@pytest.fixture
def reading(daemon: Daemon, file: Path) -> Iterator[Reading]:
    (spare,) = children_named(daemon.process.pid, "djinn-loader")
    with FIRST.acting():
        first = daemon.connect("first")
    with SECOND.acting():
        second = daemon.connect("second")
    with first, second, ThreadPoolExecutor(2) as pool:
        of_first = pool.submit(first.load, file)
        wait_until(lambda: loading(daemon) == [1], "it is being loaded")
        loader = Held(spare)
        try:
            of_second = pool.submit(second.load, file)
            wait_until(lambda: loading(daemon) == [2], "both wait for it")
            yield Reading(loader, of_first, of_second)
        finally:
            loader.let_go()


def test_a_loader_that_somebody_stopped_is_told_to_go_on(daemon: Daemon, file: Path) -> None:
    (spare,) = children_named(daemon.process.pid, "djinn-loader")
    with FIRST.acting():
        first = daemon.connect("first")
    with first, ThreadPoolExecutor(1) as pool:
        os.kill(spare, signal.SIGSTOP)
        assert not pool.submit(first.load, file).result(DEADLINE_S).was_resident


def test_who_joined_a_load_whose_loader_dies_gets_the_model_by_their_own_file(
    reading: Reading,
) -> None:
    reading.loader.kill()
    with pytest.raises(djinn.Error, match="died"):
        reading.first.result(DEADLINE_S)
    assert not reading.second.result(DEADLINE_S).was_resident


def test_who_joined_a_load_that_falls_silent_leaves_it_to_its_owner(reading: Reading) -> None:
    of_second = reading.second.result(DEADLINE_S)
    assert not reading.first.done()
    reading.loader.let_go()
    assert reading.first.result(DEADLINE_S).id != of_second.id
