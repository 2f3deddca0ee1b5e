# SPDX-License-Identifier: Apache-2.0
"""Programs on the fake runtime: how a test starts one, and how one marks its place in the log."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("DJINN_BUILD_DIR", HERE.parents[1] / "build/release"))
LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13")
PROCESS_S = 120


def built() -> Path:
    """The folder of the fakes. There are none where PyTorch has no CUDA: the test is skipped."""
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    if not (Path(spec.origin).parent / "lib/libtorch_cuda.so").exists():
        pytest.skip("this PyTorch is built without CUDA: what it launches cannot be seen")
    folder = BUILD / "fake_cuda/runtime"
    missing = [name for name in (*LIBRARIES, "libcuda.so.1") if not (folder / name).exists()]
    assert not missing, f"{folder} is without {missing}: build fake-cublas and fake-cublaslt"
    return folder


def run(log: Path, *script: str, options: str = "") -> subprocess.CompletedProcess[str]:
    return start(log, [sys.executable, *script], options)


def start(
    log: Path, command: list[str], options: str = "", driver: str = ""
) -> subprocess.CompletedProcess[str]:
    folder = built()
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(str(folder / name) for name in LIBRARIES),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": f"{HERE}:{HERE.parent / 'ghosts'}",
        "DJINN_FAKE_CUDA": driver,
        "DJINN_FAKE_RUNTIME": options,
        "DJINN_FAKE_RUNTIME_LOG": str(log),
        "PYTORCH_ALLOC_CONF": "",
    }
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )


def mark(text: str) -> None:
    ctypes.CDLL(None).djinn_fake_mark(text.encode())
