# SPDX-License-Identifier: Apache-2.0
"""Where a boot test cannot do its work it is skipped, with the reason. tests/packaging runs it."""

import subprocess
from pathlib import Path

import boot_test
import pytest

SKIPPED = 77


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As much of a system as is changed before it is booted."""
    made = tmp_path / "root"
    (made / "etc/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(boot_test, "CACHE", tmp_path)
    monkeypatch.setattr(boot_test, "missing", lambda: None)
    monkeypatch.setattr(boot_test, "make_root", lambda: made)
    return made


def test_where_nothing_boots_it_is_skipped_with_what_the_console_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = "Failed to mount cgroup at /sys/fs/cgroup/systemd: Operation not permitted"
    monkeypatch.setattr(boot_test, "nspawn", lambda *_, **__: console)
    assert boot_test.main() == SKIPPED
    assert console in capsys.readouterr().err


def test_where_debian_is_out_of_reach_it_is_skipped(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Path:
        raise subprocess.CalledProcessError(25, "mmdebstrap")

    monkeypatch.setattr(boot_test, "make_root", fail)
    assert boot_test.main() == SKIPPED
    assert "mmdebstrap cannot get a Debian here" in capsys.readouterr().err
