# SPDX-License-Identifier: Apache-2.0
"""A proxy between a client and djinnd that changes some of the bytes and descriptors that pass."""

import ctypes
import fcntl
import os
import random
import select
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

PAGE = 4096
MESSAGE_BYTES = 65536
DESCRIPTORS = 253


IO_URING_SETUP = 425  # its number, which is the same on all architectures
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


class Meddler:
    """Serves one client. What the client sends is changed while `meddles` holds."""

    def __init__(self, host: str, r: random.Random) -> None:
        self.r, self.meddles = r, False
        self.strange = strange_descriptors()
        self.place = tempfile.TemporaryDirectory(prefix="djinn-meddler.")
        path = str(Path(self.place.name) / "sock")
        self.host = f"unix:{path}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.connect(host.removeprefix("unix:"))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def hang_up(self) -> None:
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self.thread.join()
        self.listener.close()
        self.place.cleanup()
        for fd in self.strange:
            os.close(fd)

    def _serve(self) -> None:
        client, _ = self.listener.accept()
        with client, self.server, suppress(OSError):
            while self._pass_on(client):
                continue

    def _pass_on(self, client: socket.socket) -> bool:
        for one in select.select([client, self.server], [], [])[0]:
            data, fds, _, _ = socket.recv_fds(one, MESSAGE_BYTES, DESCRIPTORS)
            if not data:
                return False
            if one is client:
                self._send(self._changed(data), self._other(fds))
            else:
                socket.send_fds(client, [data], fds)
            for fd in fds:
                os.close(fd)
        return True

    def _send(self, data: bytes, fds: list[int]) -> None:
        with suppress(OSError):  # no kernel passes on an io_uring
            socket.send_fds(self.server, [data], fds)
            return
        socket.send_fds(self.server, [data])

    def _changed(self, data: bytes) -> bytes:
        if not self.meddles or self.r.random() < 0.3:
            return data
        changed = bytearray(data)
        for _ in range(self.r.randrange(1, 5)):
            values = (0, 1, 2, 127, 128, 255, self.r.randrange(256))
            changed[self.r.randrange(len(changed))] = self.r.choice(values)
        return bytes(changed[: None if self.r.random() < 0.9 else self.r.randrange(len(changed))])

    def _other(self, fds: list[int]) -> list[int]:
        """Now and then one too few, one twice, or another kind."""
        if not self.meddles or self.r.random() < 0.7:
            return fds
        strange = [self.r.choice(self.strange) for _ in fds]
        return self.r.choice((fds[:-1], [*fds, *fds[-1:]], strange, [*fds, *strange]))
