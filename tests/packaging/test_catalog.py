# SPDX-License-Identifier: Apache-2.0
"""The journal's catalog against the events that djinnd tells."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "packaging" / "journal" / "djinnd.catalog"


def ids_in_the_code() -> list[str]:
    code = (ROOT / "daemon/djinnd/events/journal.cc").read_text()
    return re.findall(r'\{"([0-9a-f]{32})", LOG_', code)


def test_each_kind_of_event_is_explained_and_no_other() -> None:
    explained = re.findall(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(), re.MULTILINE)
    assert explained == ids_in_the_code()
    assert len(explained) > 20


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="journalctl is not installed")
def test_systemd_reads_the_catalog(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib/systemd/catalog"
    place.mkdir(parents=True)
    shutil.copy(CATALOG, place)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    root = f"--root={tmp_path}"
    updated = subprocess.run(
        ["journalctl", root, "--update-catalog"], capture_output=True, text=True, timeout=60
    )
    assert updated.returncode == 0, updated.stderr
    listed = subprocess.run(
        ["journalctl", root, "--list-catalog"], capture_output=True, text=True, timeout=60
    )
    assert set(ids_in_the_code()) <= set(re.findall("[0-9a-f]{32}", listed.stdout)), listed.stderr
