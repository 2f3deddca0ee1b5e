# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the daemon of this test process. The device connects once in a process, so the daemon
lives as long; tests that end clients or count what is left start others."""

import os
from collections.abc import Callable, Iterator
from typing import Any

# Before PyTorch is loaded: see tests/e2e/conftest.py.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

import pytest
import torch
from private_daemon import THREADS, Daemon, running

torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def device_daemon() -> Iterator[Daemon]:
    with running() as one:
        os.environ["DJINN_HOST"] = one.host
        yield one


@pytest.fixture(scope="session", autouse=True)
def device(device_daemon: Daemon) -> torch.device:
    import djinn.torch

    return djinn.torch.device


@pytest.fixture
def stats() -> Callable[[], dict[str, Any]]:
    """What the device has counted since the test began."""
    from djinn.torch import _device

    before = _device.stats()

    def since() -> dict[str, Any]:
        now = _device.stats()
        return {name: now[name] - before[name] for name in now if isinstance(now[name], int)}

    return since
