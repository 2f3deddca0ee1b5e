# SPDX-License-Identifier: Apache-2.0
"""A file system, over FUSE, whose files lie; a file's name says how.

    lying_files.py MOUNT_POINT DIRECTORY

Shows each file of the directory once for each lie, as LIE.NAME."""

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mfusepy

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

from mute_files import Files, is_client, leave, served

PAGE = 4096
LATE_S = 1.0
MUTE_S = 8.0  # longer than an attacker waits

LIES = {
    "honest": "nothing",
    "longer": "its size: there is less",
    "shorter": "its size: there is more",
    "ends": "its size, from its middle on",
    "broken": "nothing, but its second half cannot be read",
    "torn": "its bytes: they are others at each read",
    "late": "nothing, but it takes its time",
    "mute": "nothing, but it does not answer djinnd",
}


class LyingFiles(Files):
    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.reads = 0
        self.never = threading.Event()

    def lie_of(self, path: str) -> tuple[str, str]:
        """And the path of the file that is shown."""
        lie, _, name = path.removeprefix("/").partition(".")
        return (lie, f"/{name}") if lie in LIES and name else ("honest", path)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [
            ".",
            "..",
            *(f"{lie}.{name}" for lie in LIES for name in os.listdir(self.directory)),
        ]

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        lie, path = self.lie_of(path)
        info = super().getattr(path)
        more = {"longer": PAGE, "shorter": -PAGE}.get(lie, 0)
        return info | {"st_size": info["st_size"] + more}

    def open(self, path: str, flags: int) -> int:
        return super().open(self.lie_of(path)[1], flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        lie, _ = self.lie_of(path)
        second_half = offset > os.fstat(fh).st_size // 2
        if lie in ("late", "mute") and not is_client(mfusepy.fuse_get_context()[2]):
            self.never.wait(LATE_S if lie == "late" else MUTE_S)
        if lie == "broken" and second_half:
            raise mfusepy.FuseOSError(errno.EIO)
        data = os.pread(fh, size, offset)
        if lie == "ends" and second_half:
            return b""
        return self.torn(data) if lie == "torn" else data

    def torn(self, data: bytes) -> bytes:
        """The first block, where a header lies, now and then too."""
        self.reads += 1
        if len(data) < PAGE or self.reads % 8 == 0:
            return data
        changed = bytearray(data)
        changed[PAGE // 2 :: PAGE] = os.urandom(len(changed[PAGE // 2 :: PAGE]))
        return bytes(changed)

    def flush(self, path: str, fh: int) -> int:
        if self.lie_of(path)[0] == "mute" and not is_client(mfusepy.fuse_get_context()[2]):
            self.never.wait(MUTE_S)
        return 0


@contextmanager
def lying(mount_point: Path, directory: Path) -> Iterator[None]:
    mount_point.mkdir()
    with served(__file__, mount_point, directory):
        yield


def serve(mount_point: str, directory: str) -> None:
    # It ends with its input, as its caller does.
    threading.Thread(target=lambda: (sys.stdin.read(), leave(mount_point)), daemon=True).start()
    # Nothing is kept in the kernel, whose answers would be the same twice.
    mfusepy.FUSE(
        LyingFiles(directory), mount_point, foreground=True, allow_other=True, attr_timeout=0
    )


if __name__ == "__main__":
    serve(*sys.argv[1:])
