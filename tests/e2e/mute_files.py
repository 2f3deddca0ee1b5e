# SPDX-License-Identifier: Apache-2.0
"""A file system for tests, over FUSE, whose server can be told not to answer djinnd and its
children, as if its network were gone: when they read a file beyond its middle, or when they close
one, and then they wait, SIGKILL or not.

    mute_files.py MOUNT_POINT DIRECTORY

Shows the directory's files. Reads `mute` (no close is answered), `silent` (no read), `slow` (reads
are answered at SLOW_BYTES_PER_S) and `answer`, one a line, and says each when it holds; at the end
of its input it answers everybody and unmounts. Where a read waits, there is a file `asked` in the
directory.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL

import mfusepy
from private_daemon import DEADLINE_S, wait_until

MUTE_S = 30.0  # at most: who waits for an answer holds up even `ps`
SLOW_BYTES_PER_S = 2 << 20
STAT = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
TIMES = ("st_atime", "st_mtime", "st_ctime")


def is_client(thread: int) -> bool:
    """Whether it is of a test: those are always answered."""
    return Path(f"/proc/{thread}/comm").read_text().startswith(("python", "pytest"))


class Files(mfusepy.Operations):
    use_ns = True

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.closes = threading.Event()
        self.reads = threading.Event()
        self.haste = threading.Event()
        self.one_by_one = threading.Lock()
        self.answer()

    def answer(self) -> None:
        self.closes.set()
        self.reads.set()
        self.haste.set()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        try:
            info = os.lstat(self.directory + path)
        except FileNotFoundError as missing:
            raise mfusepy.FuseOSError(missing.errno) from missing
        times = {name: getattr(info, f"{name}_ns") for name in TIMES}
        return {name: getattr(info, name) for name in STAT} | times

    def open(self, path: str, flags: int) -> int:
        return os.open(self.directory + path, flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if offset >= os.fstat(fh).st_size // 2:
            if not self.reads.is_set():
                Path(self.directory, "asked").touch()
                self.reads.wait(MUTE_S)
            if not self.haste.is_set():
                with self.one_by_one:
                    self.haste.wait(size / SLOW_BYTES_PER_S)
        return os.pread(fh, size, offset)

    def flush(self, path: str, fh: int) -> int:
        """The close of one descriptor, which the kernel asks about each time."""
        if not is_client(mfusepy.fuse_get_context()[2]):
            self.closes.wait(MUTE_S)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


def listen(files: Files, mount_point: str) -> None:
    for line in sys.stdin:
        if line == "mute\n":
            files.closes.clear()
        elif line == "silent\n":
            files.reads.clear()
        elif line == "slow\n":
            files.haste.clear()
        else:
            files.answer()
        print(line, end="", flush=True)
    files.answer()
    leave(mount_point)


def leave(mount_point: str) -> None:
    subprocess.run(["umount", "--lazy", mount_point], check=False)
    os._exit(0)  # libfuse would wait for who has a file of it open; they get errors now


def serve(mount_point: str, directory: str) -> None:
    files = Files(directory)
    threading.Thread(target=listen, args=(files, mount_point), daemon=True).start()
    mfusepy.FUSE(files, mount_point, foreground=True)


class FileServer:
    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def tell(self, word: str) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        print(word, file=self._server.stdin, flush=True)
        assert self._server.stdout.readline() == f"{word}\n"


class MuteFiles(FileServer):
    def mute(self) -> None:
        self.tell("mute")

    def fall_silent(self) -> None:
        self.tell("silent")

    def slow_down(self) -> None:
        self.tell("slow")

    def answer(self) -> None:
        self.tell("answer")


@contextmanager
def mounted(mount_point: Path, directory: Path) -> Iterator[MuteFiles]:
    with served(__file__, mount_point, directory) as server:
        yield MuteFiles(server)


def require_fuse(why: str) -> None:
    """Skips the test where nothing can be mounted."""
    import pytest  # the program that serves has no use for it

    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip(f"NOT TESTED: {why} needs root and /dev/fuse")


@contextmanager
def served(program: str, mount_point: Path, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """By a program like this one. Returns when it is mounted; needs root and /dev/fuse."""
    server = subprocess.Popen(
        [sys.executable, program, str(mount_point), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    try:
        wait_until(lambda: os.path.ismount(mount_point), "it is mounted")
        yield server
    finally:
        server.stdin.close()
        try:
            server.wait(DEADLINE_S)
        finally:
            server.kill()  # the kernel answers who waits, then
            subprocess.run(["umount", "--lazy", str(mount_point)], check=False, stderr=DEVNULL)


if __name__ == "__main__":
    serve(*sys.argv[1:])
