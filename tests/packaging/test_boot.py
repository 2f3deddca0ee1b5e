# SPDX-License-Identifier: Apache-2.0
"""./dev boot-test: the packages at work in a booted Debian."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
# For what hangs: it fetches a Debian where there is none yet, packs, and boots.
TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def said() -> list[str]:
    """A line each check."""
    command = [sys.executable, str(ROOT / "tools/boot_test.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        wrong = [line for line in lines if not line.startswith("ok ")]
        pytest.fail("\n".join(wrong or done.stderr.splitlines()[-60:]), pytrace=False)
    return lines


@pytest.mark.ci
def test_a_booted_debian_installs_runs_upgrades_and_purges_the_packages(said: list[str]) -> None:
    assert any(line.startswith("ok ") for line in said)


@pytest.mark.ci
def test_a_booted_debian_skips_no_check(said: list[str]) -> None:
    skipped = [line for line in said if line.startswith("skipped ")]
    if skipped:
        pytest.skip("; ".join(skipped))
