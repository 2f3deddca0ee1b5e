# SPDX-License-Identifier: Apache-2.0
"""What a token is compared with: the seconds in which as many threads read as many bytes, by a sum
of float32, from memory in huge pages where the host gives them, as weights lie.

Each thread reads one stream, as most programs do. Kernels that read several can be quicker.
"""

import itertools
import mmap
import re
import statistics
from pathlib import Path
from typing import Any

from report import seconds_of

READS = 5


def in_huge_pages() -> int:
    """Bytes of this process' own memory that are."""
    found = re.search(r"^AnonHugePages: +(\d+) kB", rollup(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def rollup() -> str:
    return Path("/proc/self/smaps_rollup").read_text()


def ones(size: int) -> Any:
    """Float32 of so many bytes. The tensor holds the pages."""
    import torch

    pages = mmap.mmap(-1, size // 4 * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32).fill_(1)


class Floor:
    """Of reading so many bytes. Measure it between the arms, with their number of threads."""

    def __init__(self, size: int) -> None:
        before = in_huge_pages()
        self._read = ones(size)
        self.huge = (in_huge_pages() - before) / self._read.nbytes  # of its bytes

    def measure(self) -> list[float]:
        return [seconds_of(self._read.sum) for _ in range(READS)]


def least(*measured: list[float]) -> float:
    """Of what was measured around an arm: its median."""
    return statistics.median(itertools.chain(*measured))
