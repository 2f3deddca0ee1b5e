# SPDX-License-Identifier: Apache-2.0
"""What the package says to systemd-tmpfiles about huge pages, tried in a root of its own."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTING = "sys/kernel/mm/transparent_hugepage/shmem_enabled"

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-tmpfiles") is None, reason="systemd-tmpfiles is not installed"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host whose kernel has the setting, with the package's file."""
    installed = tmp_path / "usr/lib/tmpfiles.d/djinn.conf"
    installed.parent.mkdir(parents=True)
    shutil.copy(ROOT / "packaging/systemd/djinn.tmpfiles", installed)
    (tmp_path / SETTING).parent.mkdir(parents=True)
    (tmp_path / SETTING).write_text("never\n")
    return tmp_path


def create(root: Path) -> None:
    """As at boot, and as an installation does; it ends with 0."""
    command = ["systemd-tmpfiles", f"--root={root}", "--create", "djinn.conf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_memory_that_asks_may_have_huge_pages(root: Path) -> None:
    create(root)
    assert (root / SETTING).read_text() == "advise"


def test_an_administrator_masks_it(root: Path) -> None:
    mask = root / "etc/tmpfiles.d/djinn.conf"
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    create(root)
    assert (root / SETTING).read_text() == "never\n"


def test_an_administrator_has_another_setting(root: Path) -> None:
    own = root / "etc/tmpfiles.d/djinn.conf"
    own.parent.mkdir(parents=True)
    own.write_text(f"w /{SETTING} - - - - within_size\n")
    create(root)
    assert (root / SETTING).read_text() == "within_size"


def test_a_kernel_without_the_setting_gets_no_file(root: Path) -> None:
    (root / SETTING).unlink()
    create(root)
    assert not (root / SETTING).exists()


def test_a_setting_that_cannot_be_written_fails_nothing(root: Path) -> None:
    """In a container /sys is read-only; a directory refuses root's writes, too."""
    (root / SETTING).unlink()
    (root / SETTING).mkdir()
    create(root)
    assert (root / SETTING).is_dir()
