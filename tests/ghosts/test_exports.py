# SPDX-License-Identifier: Apache-2.0
"""Models that were exported, run without Python.

The cases are in exports.py, and run in one process, because a process has one device.
"""

from pathlib import Path

import cases
import pytest

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 300.0
FULL_LIMIT_S = 1200.0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> cases.Outcomes:
    return cases.outcomes_of("exports.py", tmp_path_factory.mktemp("cases"), LIMIT_S)


@pytest.mark.ci
@pytest.mark.parametrize("name", cases.names_in("exports.py"))
def test_that(outcomes: cases.Outcomes, name: str) -> None:
    cases.expect_passed(outcomes, name)


@pytest.mark.full
def test_that_every_architecture_that_has_captures_says_the_same(tmp_path: Path) -> None:
    name = "every_architecture_that_has_captures"
    outcomes = cases.outcomes_of("exports.py", tmp_path, FULL_LIMIT_S, name)
    cases.expect_passed(outcomes, name)
