# SPDX-License-Identifier: Apache-2.0
"""Stands between djinn-reach and a djinn-gate for HOST, and may count or cut what crosses:

    gate_relay.py HOST [--cut BYTES there|back] [--counts FILE]

The connection ends after so many bytes of a direction. FILE has the bytes of either direction, as
two words."""

import argparse
import mmap
import os
import struct
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATE = Path(os.environ.get("DJINN_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "djinn-gate"
DIRECTIONS = ("there", "back")


def carry(source: int, sink: int, limit: int | None, counts: mmap.mmap, direction: str) -> None:
    """Ends the process, and so both directions, after so many bytes, and where the source ends."""
    total = 0
    while data := os.read(source, 65536 if limit is None else min(limit - total, 65536)):
        total += len(data)
        struct.pack_into("Q", counts, 8 * DIRECTIONS.index(direction), total)
        os.write(sink, data)
        if total == limit:
            break
    os._exit(0)


def counts_in(path: Path | None) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, 16)
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("--cut", nargs=2, metavar=("BYTES", "DIRECTION"))
    parser.add_argument("--counts", type=Path)
    arguments = parser.parse_args()
    cuts = {arguments.cut[1]: int(arguments.cut[0])} if arguments.cut else {}
    counts = counts_in(arguments.counts)
    gate = subprocess.Popen(
        [str(GATE), "--stdio", "--host", arguments.host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert gate.stdin is not None and gate.stdout is not None
    there = (0, gate.stdin.fileno(), cuts.get("there"), counts, "there")
    threading.Thread(target=carry, args=there, daemon=True).start()
    carry(gate.stdout.fileno(), 1, cuts.get("back"), counts, "back")


if __name__ == "__main__":
    main()
