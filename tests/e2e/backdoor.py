# SPDX-License-Identifier: Apache-2.0
"""A session whose socket, bells and memory are used behind its library's back.

The offsets are those of ipc/session_memory.h, the counts those of ipc/limits.h."""

import ctypes
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

import djinn

PAGE = 4096
LIBC = ctypes.CDLL(None)
LIBC.mremap.restype = ctypes.c_void_p
LIBC.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
MREMAP_MAYMOVE = 1
SUBMISSION_SLOTS, COMPLETION_SLOTS = 256, 1024
TOKENS_PER_COMPLETION = 8
SUBMISSIONS_AT, SLOT_BYTES = PAGE, 64
COMPLETIONS_AT = SUBMISSIONS_AT + SUBMISSION_SLOTS * SLOT_BYTES
STAGING_AT = PAGE + SUBMISSION_SLOTS * (SLOT_BYTES + 256) + COMPLETION_SLOTS * SLOT_BYTES
PUBLISHED, COMPLETED, COMPLETIONS, CONSUMED, WAITING, CLIENT_WAITING, CANCELLED, BLOCKED = range(
    0, 8 * 64, 64
)


def open_fds() -> dict[int, str]:
    fds = (int(fd) for fd in os.listdir("/proc/self/fd"))
    return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in fds if _is_open(fd)}


def _is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def session_memories() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "djinn-session" in line}


def kind_of(fd: int) -> int:
    with socket.socket(fileno=os.dup(fd)) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)


def mapped_again(start: int, size: int) -> memoryview:
    """Shared memory at another place too, which the library does not unmap with its session."""
    place = LIBC.mremap(start, 0, size, MREMAP_MAYMOVE)  # no old size: both stay
    assert place not in (None, ctypes.c_void_p(-1).value)
    return memoryview((ctypes.c_ubyte * size).from_address(place)).cast("B")


class Backdoor:
    """Of the session that `connect` makes, with a data path."""

    def __init__(self, connect: Callable[[], djinn.Session]) -> None:
        fds, maps = open_fds(), session_memories()
        self.session = connect()
        links = {fd: link for fd, link in open_fds().items() if fd not in fds}
        sockets = {kind_of(fd): fd for fd, link in links.items() if link.startswith("socket:")}
        self.socket = sockets[socket.SOCK_SEQPACKET]
        self.listener = sockets[socket.SOCK_STREAM]
        # The session opens what Ctrl-C wakes it with before it connects.
        _, self.bell = sorted(fd for fd, link in links.items() if "eventfd" in link)
        (span,) = session_memories() - maps
        start, end = (int(part, 16) for part in span.split("-"))
        self.memory = mapped_again(start, end - start)
        weakref.finalize(self, LIBC.munmap, ctypes.addressof(self.memory.obj), end - start)

    def hang_up(self) -> None:
        """As if the client had died; safe in any thread."""
        with socket.socket(fileno=os.dup(self.socket)) as same:
            same.shutdown(socket.SHUT_RDWR)

    def word(self, at: int) -> int:
        return int.from_bytes(self.memory[at : at + 8], "little")

    def store(self, at: int, value: int) -> None:
        self.memory[at : at + 8] = (value % 2**64).to_bytes(8, "little")

    def ring(self) -> None:
        os.write(self.bell, (1).to_bytes(8, "little"))

    def slot(self, index: int) -> int:
        return SUBMISSIONS_AT + index % SUBMISSION_SLOTS * SLOT_BYTES

    def publish(self, submission: bytes) -> None:
        index = self.word(PUBLISHED)
        self.memory[self.slot(index) :][:SLOT_BYTES] = submission
        self.store(PUBLISHED, index + 1)
        self.ring()

    def submit(self, submission: bytes, block: bytes, block_at: int = 0) -> None:
        self.memory[STAGING_AT + block_at :][: len(block)] = block
        self.publish(submission)

    def last_error(self) -> int:
        """The code of the last completion; 0 is none."""
        index = self.word(COMPLETIONS) - 1
        at = COMPLETIONS_AT + index % COMPLETION_SLOTS * SLOT_BYTES
        return int.from_bytes(self.memory[at + 2 : at + 4], "little")

    def is_complete(self) -> bool:
        """The last submission is; what it said is consumed."""
        self.store(CONSUMED, self.word(COMPLETIONS))
        return self.word(COMPLETED) == self.word(PUBLISHED)
