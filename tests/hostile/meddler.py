# SPDX-License-Identifier: Apache-2.0
"""A proxy between a client and djinnd that changes some of the bytes and descriptors that pass."""

import ctypes
import fcntl
import os
import random
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

from proxy import Proxy

PAGE = 4096
IO_URING_SETUP = 425  # its number, which is the same on all architectures
# Where a request says of which kind it is, and how many kinds there are: ClientRequest's union.
KIND_AT, KINDS = 20, 32
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def io_uring() -> int:
    """-1 where the kernel has none for us."""
    parameters = (ctypes.c_ubyte * 120)()
    return int(ctypes.CDLL(None).syscall(IO_URING_SETUP, 1, parameters))


def memfd(size: int, seals: int = 0) -> int:
    fd = os.memfd_create("strange", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def strange_descriptors() -> list[int]:
    """What is no memory, no file, or not as large as it says."""
    fds = [*os.pipe(), *(end.detach() for end in socket.socketpair())]
    fds += [memfd(0), memfd(PAGE), memfd(1 << 40, SEALS), memfd(2**63 - PAGE, SEALS)]
    with select.epoll() as poll:
        fds.append(os.dup(poll.fileno()))
    fds += [os.eventfd(0), os.pidfd_open(os.getpid()), io_uring()]
    fds += [os.open(path, os.O_RDONLY) for path in ("/", "/dev/zero", "/dev/full", "/proc/version")]
    return [fd for fd in fds if fd >= 0]


class Meddler(Proxy):
    """What the client sends is changed while `meddles` holds."""

    def __init__(self, host: str, r: random.Random) -> None:
        self.r, self.meddles = r, False
        self.strange = strange_descriptors()
        super().__init__(host)

    def close(self) -> None:
        super().close()
        for fd in self.strange:
            os.close(fd)

    def changed(self, data: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        return (self._garbled(data), self._other(fds)) if self.meddles else (data, fds)

    def send(self, data: bytes, fds: list[int]) -> None:
        with suppress(OSError):  # no kernel passes on an io_uring
            return super().send(data, fds)
        super().send(data, [])

    def _garbled(self, data: bytes) -> bytes:
        if self.r.random() < 0.3:
            return data
        changed = bytearray(data)
        for _ in range(self.r.randrange(1, 5)):
            values = (0, 1, 2, 127, 128, 255, self.r.randrange(256))
            changed[self.r.randrange(len(changed))] = self.r.choice(values)
        if self.r.random() < 0.1 and len(changed) > KIND_AT:  # what no call of Python's asks, too
            changed[KIND_AT] = self.r.randrange(KINDS)
        return bytes(changed[: None if self.r.random() < 0.9 else self.r.randrange(len(changed))])

    def _other(self, fds: list[int]) -> list[int]:
        """Now and then one too few, one twice, or another kind."""
        if self.r.random() < 0.7:
            return fds
        strange = [self.r.choice(self.strange) for _ in fds]
        return self.r.choice((fds[:-1], [*fds, *fds[-1:]], strange, [*fds, *strange]))
