# SPDX-License-Identifier: Apache-2.0
"""A djinn-gate whose connection ends at a byte: cutter.py BYTES there|back HOST"""

import os
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATE = Path(os.environ.get("DJINN_BUILD_DIR", ROOT / "build" / "release")) / "bin" / "djinn-gate"


def carry(source: int, sink: int, limit: int | None) -> None:
    """Ends both directions after so many bytes, and where the source ends."""
    left = limit
    while data := os.read(source, 65536 if left is None else min(left, 65536)):
        os.write(sink, data)
        if left is not None:
            left -= len(data)
            if left == 0:
                break
    os._exit(0)


def main() -> None:
    limit, direction, host = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    gate = subprocess.Popen(
        [str(GATE), "--stdio", "--host", host], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert gate.stdin is not None and gate.stdout is not None
    there, back = (limit, None) if direction == "there" else (None, limit)
    threading.Thread(target=carry, args=(0, gate.stdin.fileno(), there), daemon=True).start()
    carry(gate.stdout.fileno(), 1, back)


if __name__ == "__main__":
    main()
