# SPDX-License-Identifier: Apache-2.0
"""README.md's Python says what Python says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import children
import pytest
from private_daemon import ROOT, running

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 120.0
# Sums are rounded in another order on another processor, where the text may go on otherwise.
TEXT = re.compile(r"^(':daemon: /).*'$", re.M)


def test_the_readmes_python_prints_what_it_says(tmp_path: Path) -> None:
    (session,) = re.findall(r"^```\n(>>> .*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    wanted, texts = TEXT.subn(r"\1...'", session)
    assert texts == 1
    page = tmp_path / "session.txt"
    page.write_text(wanted)
    with running() as daemon:
        ran = subprocess.run(
            [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", str(page)],
            env={**os.environ, **children.ENVIRONMENT, "DJINN_HOST": daemon.host},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
