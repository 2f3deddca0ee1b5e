"""Models on a file system whose server does not answer: only who uses it waits. What djinnd does
with one descriptor that does not close is in closers_test.cc; here the loader has one, too."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mute_files import MuteFiles, mounted
from private_daemon import Daemon, wait_until
from safetensors.torch import save_file

OPEN_AND_WAIT = """
import sys, djinn
djinn.connect(sys.argv[1], "victim").load(sys.argv[2])
"""


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """What the file system shows."""
    (tmp_path / "shown").mkdir()
    save_file({"w": torch.ones(1000)}, tmp_path / "shown" / "model.safetensors")
    return tmp_path / "shown"


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted"


@pytest.fixture
def files(shown: Path, mount_point: Path) -> Iterator[MuteFiles]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    with mounted(mount_point, shown) as server:
        wait_until((mount_point / "model.safetensors").exists, "it is mounted")
        yield server


def test_a_user_of_files_that_do_not_close_holds_up_nobody(
    daemon: Daemon, files: MuteFiles, mount_point: Path, tmp_path: Path
) -> None:
    model = mount_point / "model.safetensors"
    save_file({"w": torch.zeros(10)}, tmp_path / "other.safetensors")
    with daemon.connect("first") as first:
        assert not first.load(model).was_resident
        files.mute()
        # It is told that the model is there already, but does not hear it: it closes its file.
        victim = subprocess.Popen([sys.executable, "-c", OPEN_AND_WAIT, daemon.host, str(model)])
        try:
            wait_until(lambda: daemon.status()["descriptors_closing"] > 0, "djinnd closes a file")
            with daemon.connect("another") as another:
                # The loader that had the mute file would not read this one.
                loaded = another.load(tmp_path / "other.safetensors")
                assert "w" in loaded.tensors
        finally:
            files.answer()
            victim.send_signal(signal.SIGKILL)
            victim.wait()
        wait_until(lambda: daemon.status()["descriptors_closing"] == 0, "all are closed")
        assert first.load(model).was_resident
