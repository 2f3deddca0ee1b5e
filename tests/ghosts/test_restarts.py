# SPDX-License-Identifier: Apache-2.0
"""djinnd was stopped or restarted: what happened, why, what next; and the process goes on."""

from pathlib import Path

import children
import pytest

pytest.importorskip("djinn.torch", exc_type=ImportError)


def test_a_process_survives_the_restart_of_djinnd(tmp_path: Path) -> None:
    assert children.python(tmp_path / "log", 120.0, "restarts.py", str(tmp_path)) is None
