# SPDX-License-Identifier: Apache-2.0
"""A TCP port of this host that leads to another one, and how many bytes have crossed it."""

import socket
import threading


class CountedWire:
    def __init__(self, port: int) -> None:
        self.bytes = 0  # either way
        self._to = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._door.accept()
            except OSError:  # it is closed
                return
            other = socket.create_connection(("127.0.0.1", self._to))
            for source, sink in ((one, other), (other, one)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            self.bytes += len(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


__all__ = ["CountedWire"]
