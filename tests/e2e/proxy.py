# SPDX-License-Identifier: Apache-2.0
"""A proxy between one client and djinnd. A class of it changes what the client sends."""

import os
import select
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

MESSAGE_BYTES = 65536
DESCRIPTORS = 253


class Proxy:
    """Passes on what comes until either side hangs up, in a thread of its own. Whichever user the
    process acts as when the client comes is whom djinnd sees."""

    def __init__(self, host: str) -> None:
        self._djinnd = host.removeprefix("unix:")
        self._place = tempfile.TemporaryDirectory(prefix="djinn-proxy.")
        os.chmod(self._place.name, 0o711)
        path = str(Path(self._place.name) / "sock")
        self.host = f"unix:{path}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        os.chmod(path, 0o666)
        self._listener.listen()
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hang_up(self) -> None:
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # where no client came
        self.hang_up()
        self._thread.join()
        self._listener.close()
        self._place.cleanup()

    def changed(self, data: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        """What djinnd gets of a message of the client's. The descriptors stay whose they are."""
        return data, fds

    def send(self, data: bytes, fds: list[int]) -> None:
        socket.send_fds(self.server, [data], fds)

    def _serve(self) -> None:
        with self.server, suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                self.server.connect(self._djinnd)
                while self._pass_on(client):
                    continue

    def _pass_on(self, client: socket.socket) -> bool:
        for one in select.select([client, self.server], [], [])[0]:
            data, fds, _, _ = socket.recv_fds(one, MESSAGE_BYTES, DESCRIPTORS)
            if not data:
                return False
            if one is client:
                self.send(*self.changed(data, fds))
            else:
                socket.send_fds(client, [data], fds)
            for fd in fds:
                os.close(fd)
        return True
