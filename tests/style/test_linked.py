# SPDX-License-Identifier: Apache-2.0
"""djinnd, its mover and loader and what clients have link neither LibTorch nor CUDA, and nothing is
linked with NVIDIA's driver."""

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
    "pattern",
    [
        *("djinnd", "djinn-mover", "djinn-loader", "djinn-gate", "djinn-gate-ca", "djinn-reach"),
        *("djinnctl", "libdjinn-client.so*", "_client.*.so"),
    ],
)
def test_links_neither_torch_nor_cuda(pattern: str) -> None:
    libraries = needed(built(pattern))
    assert any(name.startswith("libc.so") for name in libraries), "readelf said nothing"
    assert not [name for name in libraries if FORBIDDEN.match(name)]


@pytest.mark.parametrize(
    "pattern",
    ["djinnd", "djinn-worker", "djinnctl", "djinn-gate-ca", "libdjinn-client.so*", "_client.*.so"],
)
def test_nothing_of_the_network_is_in_djinnd_or_a_program(pattern: str) -> None:
    network = re.compile(r"lib(kj-async|capnp-rpc|ssl)")
    assert [name for name in needed(built(pattern)) if network.match(name)] == []


def test_nothing_is_linked_with_nvidias_driver() -> None:
    """It is opened at run time: every program starts where there is none."""
    built("djinnd")
    folders = [BUILD_DIR / "bin", BUILD_DIR / "lib", BUILD_DIR / "python"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    programs = [path for path in files if path.open("rb").read(4) == b"\x7fELF"]
    assert {"djinnd", "djinn-mover", "djinn-worker"} <= {path.name for path in programs}
    drivers = re.compile(r"lib(cuda|nvidia-ml)\.so")
    assert [p.name for p in programs if any(map(drivers.match, needed(p)))] == []
