# SPDX-License-Identifier: Apache-2.0
"""The proxy of a siege: what it makes of a client's messages."""

import random
import re
from pathlib import Path

import djinn
from meddler import KIND_AT, KINDS, Meddler
from private_daemon import running

SCHEMA = Path(__file__).resolve().parents[2] / "ipc" / "codec" / "djinn.capnp"
STATUS = 8  # its place in the union


class Reader(Meddler):
    """Keeps the last message."""

    def changed(self, data: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        self.last = data
        return super().changed(data, fds)


def test_a_siege_sends_requests_of_all_kinds() -> None:
    (kinds,) = re.findall(
        r"^struct ClientRequest .*?\n  union {\n(.*?)\n  }", SCHEMA.read_text(), re.M | re.S
    )
    assert kinds.count("@") == KINDS
    with running() as daemon, Reader(daemon.host, random.Random(5)) as meddler:
        djinn.connect(meddler.host, "reader").status()
        status = meddler.last
    assert status[KIND_AT] == STATUS
    meddler.meddles = True
    sent = {meddler.changed(status, [])[0][KIND_AT:][:1] for _ in range(4000)}
    assert sent >= {bytes([kind]) for kind in range(KINDS)}
