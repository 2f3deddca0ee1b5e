# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the log of eager.py, of which every test of what PyTorch launches asks something."""

from pathlib import Path

import pytest
from fake_process import HERE, run
from launch_log import Line, sections


@pytest.fixture(scope="session")
def eager_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("eager") / "log"
    done = run(log, str(HERE / "eager.py"))
    assert done.returncode == 0, done.stderr
    return log


@pytest.fixture(scope="session")
def eager(eager_log: Path) -> dict[str, list[Line]]:
    return sections(eager_log)
