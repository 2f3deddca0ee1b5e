# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the daemon of this test process, and a small Llama here and in it. The device connects
once in a process, so the daemon lives as long; tests that end clients or count what is left start
others."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
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


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import llama

    return llama.save(tmp_path_factory.mktemp("llama"), 11)


@pytest.fixture(scope="module")
def enabled() -> Iterator[None]:
    import djinn

    djinn.enable()
    yield
    djinn.disable()


@pytest.fixture(scope="module")
def local(checkpoint: Path, enabled: None) -> Any:
    """The model in this process, the reference: no test changes it."""
    import llama

    return llama.local(checkpoint)


@pytest.fixture
def ghost(checkpoint: Path, enabled: None) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint)


@pytest.fixture
def stats() -> Callable[[], dict[str, Any]]:
    """What the device has counted since the test began."""
    from djinn.torch import _device

    before = _device.stats()

    def since() -> dict[str, Any]:
        now = _device.stats()
        return {name: now[name] - before[name] for name in now if isinstance(now[name], int)}

    return since


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[str]]]:
    """What djinn warns of inside, as in a process that has been told nothing yet."""
    import djinn
    from djinn.torch import notice

    @contextmanager
    def listen() -> Iterator[list[str]]:
        monkeypatch.setattr(notice, "_told", {})
        sentences: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", djinn.PerformanceWarning)
            yield sentences
        ours = [one for one in caught if one.category is djinn.PerformanceWarning]
        sentences += [str(one.message) for one in ours]

    return listen
