# SPDX-License-Identifier: Apache-2.0
"""Models on a disk that breaks in the midst of reading: the open says so, and nothing else does."""

from collections.abc import Iterator
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from broken_disk import mounted
from command_line import ctl, events_of, wait_until_hashed
from mute_files import FileServer, require_fuse
from private_daemon import Daemon, running, wait_until
from safetensors.torch import save_file

ROWS = 1 << 13
LINEAR = f"""srg 1 "linear"
weight %w "w" : float32[{ROWS}, 64]
input %x : float32[1, 64]
%y = aten::linear(%x, %w)
output %y
"""


@pytest.fixture
def host() -> Iterator[Daemon]:
    with running() as one:
        yield one


@pytest.fixture
def disk(tmp_path: Path, mount_point: Path) -> Iterator[FileServer]:
    require_fuse("a disk that fails")
    (tmp_path / "kept").mkdir()
    write_model(tmp_path / "kept" / "model.safetensors")
    with mounted(mount_point, tmp_path / "kept") as server:
        yield server


def write_model(path: Path, value: float = 1.0) -> Path:
    torch.manual_seed(4)
    save_file({"w": torch.randn(ROWS, 64) * value}, path)
    return path


def result(session: djinn.Session, model: djinn.Model) -> bytes:
    return session.run_once(LINEAR, model, x=np.ones((1, 64), np.float32))["y"].tobytes()


def open_is_refused(session: djinn.Session, path: Path) -> None:
    with pytest.raises(djinn.Error, match="Input/output error") as broken:
        session.load(path)
    assert broken.value.code == "io"
    assert "Check the disk" in str(broken.value)


def is_as_before(host: Daemon, before: dict[str, int]) -> bool:
    now = host.status()
    return now["descriptors_closing"] == 0 and all(now[name] == before[name] for name in before)


@pytest.fixture
def others(host: Daemon, tmp_path: Path) -> Iterator[djinn.Session]:
    """A session whose model gives the same before and after."""
    with host.connect("others") as session:
        model = session.load(write_model(tmp_path / "other.safetensors", value=2.0))
        before = result(session, model)
        yield session
        assert result(session, model) == before


def test_a_disk_that_breaks_in_the_midst_of_a_load_fails_it_alone(
    host: Daemon, others: djinn.Session, disk: FileServer, mount_point: Path
) -> None:
    path = mount_point / "model.safetensors"
    before = {name: host.status()[name] for name in ("models", "memory_models_bytes")}
    disk.tell("end")
    open_is_refused(others, path)
    wait_until(lambda: is_as_before(host, before), "nothing is left")
    disk.tell("mend")
    assert not others.load(path).was_resident


def test_a_disk_that_breaks_in_the_midst_of_a_comparison_fails_that_alone(
    host: Daemon, others: djinn.Session, disk: FileServer, mount_point: Path
) -> None:
    path = mount_point / "model.safetensors"
    model = others.load(path)
    expected = result(others, model)
    before = {name: host.status()[name] for name in ("models", "memory_models_bytes")}
    disk.tell("end")
    with host.connect("another") as another:
        open_is_refused(another, path)
        assert host.status()["compared_opens"] == 1
        wait_until(lambda: is_as_before(host, before), "nothing is left")
        assert result(others, model) == expected
        disk.tell("mend")
        again = another.load(path)
        assert again.was_resident
        assert again.id == model.id
    assert ctl(host, "evict", "--force", "--all").code == 0


def test_a_disk_that_breaks_while_a_model_comes_back_is_told_with_the_files_name(
    host: Daemon, disk: FileServer, mount_point: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file({"unused": torch.zeros(8)}, whole)
    broken = mount_point / "model.safetensors"
    with host.connect("reader") as session:
        model = session.load([whole, broken])
        before = result(session, model)
        wait_until_hashed(host)
        assert ctl(host, "evict", "--force", "--all").code == 0
        disk.tell("end")
        with pytest.raises(djinn.Error) as told:
            result(session, model)
        assert str(told.value).startswith(f"{broken.name}: ")
        assert "Input/output error" in str(told.value)
        assert events_of(host, "model-failed")[-1]["reason"] == str(told.value)
        disk.tell("mend")
        assert result(session, model) == before
