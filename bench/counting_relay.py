# SPDX-License-Identifier: Apache-2.0
"""Stands between djinn-reach and a djinn-gate, and keeps count: counting_relay.py COUNTS GATE HOST.
The file COUNTS has the bytes of either direction, as two words."""

import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path


def carry(source: int, sink: int, counts: mmap.mmap, at: int) -> None:
    total = 0
    while data := os.read(source, 1 << 16):
        total += len(data)
        struct.pack_into("Q", counts, at, total)
        os.write(sink, data)
    os._exit(0)


def main() -> None:
    path, gate, host = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        counts = mmap.mmap(file.fileno(), 16)
    far = subprocess.Popen(
        [gate, "--stdio", "--host", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert far.stdin is not None and far.stdout is not None
    there = (0, far.stdin.fileno(), counts, 0)
    threading.Thread(target=carry, args=there, daemon=True).start()
    carry(far.stdout.fileno(), 1, counts, 8)


if __name__ == "__main__":
    main()
