# SPDX-License-Identifier: Apache-2.0
"""Cases that run one after the other in one process, because a process has one device: functions
marked `@case` in a file beside this one."""

import json
import re
from pathlib import Path

import children
from private_daemon import running

Outcomes = dict[str, str | None]  # of each case that was reached: None, or what went wrong
THE_PROCESS = "the process"


def names_in(file: str) -> list[str]:
    """Also the process, which must end as it should."""
    text = Path(__file__).with_name(file).read_text()
    return [THE_PROCESS, *re.findall(r"^@case\ndef (\w+)", text, re.MULTILINE)]


def outcomes_of(file: str, scratch: Path, limit_s: float, *names: str) -> Outcomes:
    """Of all its cases, or of those that are named."""
    report, log = scratch / "report.json", scratch / "cases.log"
    with running() as daemon:
        ended = children.python(
            *(log, limit_s, file, str(report), str(scratch), daemon.host), *names
        )
    found: Outcomes = json.loads(report.read_text()) if report.exists() else {}
    return found | {THE_PROCESS: ended}


def expect_passed(outcomes: Outcomes, name: str) -> None:
    assert outcomes.get(name, f"not reached: {outcomes[THE_PROCESS]}") is None, outcomes[name]
