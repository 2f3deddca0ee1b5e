# SPDX-License-Identifier: Apache-2.0
"""A disk for tests, over FUSE, that can be told to fail as disks do.

    broken_disk.py MOUNT_POINT DIRECTORY

Keeps its files in the directory. Reads one word a line and says it when it holds: `write` and
`read` fail with EIO from then on, and with `end` what is read beyond a file's middle; `lose` takes
what is written, forgets it, and says so when it is asked to make it last; `mend` ends all."""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mfusepy
from mute_files import Files, FileServer, leave, served


class BrokenDisk(Files):
    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.fault = "mend"

    def fail_at(self, fault: str) -> None:
        if self.fault == fault:
            raise mfusepy.FuseOSError(errno.EIO)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self.directory + path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def rename(self, old: str, new: str) -> int:
        """libfuse hides a file that is removed while somebody has it open."""
        os.rename(self.directory + old, self.directory + new)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self.directory + path)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self.directory + path if fh is None else fh, length)
        return 0

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self.fail_at("write")
        return len(data) if self.fault == "lose" else os.pwrite(fh, data, offset)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self.fail_at("read")
        if offset >= os.fstat(fh).st_size // 2:
            self.fail_at("end")
        return os.pread(fh, size, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self.fail_at("lose")
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0


def listen(disk: BrokenDisk, mount_point: str) -> None:
    for line in sys.stdin:
        disk.fault = line.strip()
        print(line, end="", flush=True)
    leave(mount_point)


@contextmanager
def mounted(mount_point: Path, directory: Path) -> Iterator[FileServer]:
    with served(__file__, mount_point, directory) as server:
        yield FileServer(server)


if __name__ == "__main__":
    mount_point, directory = sys.argv[1:]
    disk = BrokenDisk(directory)
    threading.Thread(target=listen, args=(disk, mount_point), daemon=True).start()
    # Nothing is kept in the kernel, which would answer for the disk.
    mfusepy.FUSE(disk, mount_point, foreground=True, direct_io=True)
