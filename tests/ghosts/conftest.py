# SPDX-License-Identifier: Apache-2.0
"""Ghost tests start before PyTorch is loaded: see tests/e2e/conftest.py."""

import os
from collections.abc import Iterator

os.environ.setdefault("GOMP_SPINCOUNT", "5000")

import compare
import pytest
from private_daemon import Daemon, running


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def forks() -> Iterator[compare.Forks]:
    with compare.Forks() as one:
        yield one
