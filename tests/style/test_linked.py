# SPDX-License-Identifier: Apache-2.0
"""djinnd, its mover and the client library link neither LibTorch nor CUDA."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from repo import BUILD_DIR

FORBIDDEN = re.compile(r"lib(torch|c10|cuda|cudart|nvidia|gomp)")


def built(pattern: str) -> Path:
    found = sorted(path for path in BUILD_DIR.rglob(pattern) if path.is_file())
    if not found:
        if os.environ.get("CI"):
            pytest.fail(f"{pattern} is not built")
        pytest.skip(f"{pattern} is not built")
    return found[0]


def needed(path: Path) -> list[str]:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(path)], check=True, capture_output=True, text=True
    )
    return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic.stdout)


@pytest.mark.parametrize(
    "pattern", ["djinnd", "djinn-mover", "djinn-loader", "libdjinn-client.so*"]
)
def test_links_neither_torch_nor_cuda(pattern: str) -> None:
    libraries = needed(built(pattern))
    assert any(name.startswith("libc.so") for name in libraries), "readelf said nothing"
    assert not [name for name in libraries if FORBIDDEN.match(name)]
