"""Ghosts in the hands of users: pipelines, streamers, training, adapters, threads, dead workers.

The cases are in users.py, and run in one process, because a process has one device.
"""

import json
import re
from pathlib import Path

import children
import pytest
from private_daemon import running

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 150.0
CASES = re.findall(r"^@case\ndef (\w+)", Path(__file__).with_name("users.py").read_text(), re.M)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Of every case that was reached."""
    scratch = tmp_path_factory.mktemp("users")
    report, log = scratch / "report.json", scratch / "users.log"
    with running() as daemon:
        ended = children.python(log, LIMIT_S, "users.py", str(report), str(scratch), daemon.host)
    found = json.loads(report.read_text()) if report.exists() else {}
    return found | {"the process": ended}


@pytest.mark.ci
@pytest.mark.parametrize("name", ["the process", *CASES])
def test_that(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes.get(name, f"not reached: {outcomes['the process']}") is None, outcomes[name]
