# SPDX-License-Identifier: Apache-2.0
"""Models that have names in djinnd's store: imported, listed, loaded, removed; what stays over a
restart, and what a death in the middle leaves."""

import os
import pwd
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ctl
from other_user import User
from private_daemon import Daemon, children_named, running, wait_until

NOBODY = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup")
TAKEN = {"config.json", "generation_config.json", "model.safetensors"}  # of the byte model
PERMISSION_DENIED, NO_SUCH_OBJECT = 5, 4


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with running() as one:
        yield one


@pytest.fixture
def directory() -> Iterator[Path]:
    """Of djinnds one after the other."""
    with tempfile.TemporaryDirectory(prefix="djinn-test.") as one:
        yield Path(one)


def store_of(directory: Path) -> Path:
    return directory / "state" / "djinn" / "store"


def blobs(directory: Path) -> list[Path]:
    return [one for one in (store_of(directory) / "blobs").rglob("*") if one.is_file()]


def names(daemon: Daemon) -> list[str]:
    return [one["name"] for one in ctl(daemon, "models", "-j").items()]


def test_an_imported_model_is_listed_loaded_and_removed(daemon: Daemon, byte_model: Path) -> None:
    assert ctl(daemon, "models").table() == [["NAME", "SIZE", "FILES", "READERS", "OWNER", "AGE"]]
    assert ctl(daemon, "import", str(byte_model), "--name", "bytes:v1").text() == "bytes:v1"
    (item,) = ctl(daemon, "models", "-j").items()
    sizes = [(byte_model / name).stat().st_size for name in TAKEN]
    assert (item["name"], item["files"], item["bytes"]) == ("bytes:v1", len(TAKEN), sum(sizes))
    assert {one.stat().st_size for one in blobs(daemon.directory)} == set(sizes)
    (loaded,) = ctl(daemon, "load", "djinn:bytes:v1", "-j").items()
    assert (loaded["name"], loaded["was_resident"]) == ("bytes:v1", False)
    (model,) = ctl(daemon, "ps", "-j").items()
    assert (model["name"], model["path"]) == ("bytes:v1", "djinn:bytes:v1")
    assert ctl(daemon, "unload", loaded["id"]).code == 0
    assert ctl(daemon, "models", "rm", "bytes:v1").text() == ""
    assert names(daemon) == []
    wait_until(lambda: not blobs(daemon.directory), "its bytes are gone")
    ended = ctl(daemon, "load", "djinn:bytes:v1")
    assert ended.code == NO_SUCH_OBJECT
    assert "There is no published model 'bytes:v1' that you may read" in ended.err


def test_what_two_names_share_stays_until_both_are_gone(daemon: Daemon, byte_model: Path) -> None:
    for name in ("one", "two"):
        assert ctl(daemon, "import", str(byte_model), "--name", name).code == 0
    assert len(blobs(daemon.directory)) == len(TAKEN)
    assert ctl(daemon, "models", "rm", "one").code == 0
    assert ctl(daemon, "load", "djinn:two").code == 0
    assert len(blobs(daemon.directory)) == len(TAKEN)


def test_refusals_say_what_to_do(daemon: Daemon, byte_model: Path, tmp_path: Path) -> None:
    assert ctl(daemon, "import", str(byte_model), "--name", "one").code == 0
    taken = ctl(daemon, "import", str(byte_model), "--name", "one")
    assert taken.code != 0 and "djinnctl models rm" in taken.err
    wrong = ctl(daemon, "import", str(byte_model), "--name", "no name")
    assert wrong.code != 0 and "Names are like gpt2, gpt2:v1" in wrong.err
    absent = ctl(daemon, "models", "rm", "other")
    assert (absent.code, names(daemon)) == (NO_SUCH_OBJECT, ["one:latest"])
    broken = tmp_path / "broken"
    shutil.copytree(byte_model, broken)
    (broken / "model.safetensors").write_bytes(b"no safetensors")
    refused = ctl(daemon, "import", str(broken), "--name", "broken")
    assert refused.code != 0 and "model.safetensors" in refused.err
    assert names(daemon) == ["one:latest"]
    wait_until(lambda: len(blobs(daemon.directory)) == len(TAKEN), "what failed leaves nothing")


def test_names_outlive_djinnd(directory: Path, byte_model: Path) -> None:
    first = Daemon(directory, ())
    assert ctl(first, "import", str(byte_model), "--name", "bytes").code == 0
    before = ctl(first, "models", "-j").items()
    first.stop()
    second = Daemon(directory, ())
    try:
        assert ctl(second, "models", "-j").items() == before
        assert ctl(second, "load", "djinn:bytes").code == 0
    finally:
        second.stop()


def test_a_djinnd_that_is_killed_in_the_middle_of_an_import_leaves_nothing_of_it(
    directory: Path, byte_model: Path
) -> None:
    first = Daemon(directory, ())
    assert ctl(first, "import", str(byte_model), "--name", "whole").code == 0
    large = directory / "large"
    shutil.copytree(byte_model, large)
    (large / "config.json").write_text((large / "config.json").read_text() + " ")
    pid = first.process.pid

    def loaders() -> list[int]:
        return children_named(pid, "djinn-loader")

    wait_until(lambda: len(loaders()) == 1, "the spare loader is there")
    for loader in loaders():
        os.kill(loader, signal.SIGSTOP)
    importing = threading.Thread(target=ctl, args=(first, "import", str(large), "--name", "half"))
    importing.start()
    wait_until(lambda: len(loaders()) == 2, "the import has its loader")
    first.process.kill()
    importing.join()
    first.stop()
    second = Daemon(directory, ())
    try:
        assert names(second) == ["whole:latest"]
        assert len(blobs(directory)) == len(TAKEN)
        assert ctl(second, "import", str(large), "--name", "half").code == 0
    finally:
        second.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_reads_what_administrators_publish_and_has_names_of_their_own(
    byte_model: Path,
) -> None:
    with (
        running("--store-keep-free", "0", socket_group="nogroup") as daemon,
        tempfile.TemporaryDirectory() as place,
    ):
        daemon.directory.chmod(0o711)
        Path(place).chmod(0o755)
        copy = Path(place) / "copy"
        shutil.copytree(byte_model, copy)
        assert ctl(daemon, "import", str(byte_model), "--name", "shared").code == 0
        assert ctl(daemon, "import", str(byte_model), "--name", "~root/own").code == 0
        (first,) = ctl(daemon, "load", "djinn:shared", "-j").items()
        with NOBODY.acting():
            assert names(daemon) == ["shared:latest"]
            (second,) = ctl(daemon, "load", "djinn:shared", "-j").items()
            assert (second["id"], second["was_resident"]) == (first["id"], True)
            hidden = ctl(daemon, "load", "djinn:~root/own")
            assert hidden.code == NO_SUCH_OBJECT
            refused = ctl(daemon, "import", str(copy), "--name", "mine")
            assert refused.code == PERMISSION_DENIED
            assert "Call it ~nobody/mine:latest" in refused.err
            assert ctl(daemon, "import", str(copy), "--name", "~nobody/mine").code == 0
            assert ctl(daemon, "models", "rm", "shared").code == PERMISSION_DENIED
            assert sorted(names(daemon)) == ["shared:latest", "~nobody/mine:latest"]
            assert ctl(daemon, "models", "rm", "~nobody/mine").code == 0
        assert sorted(names(daemon)) == ["shared:latest", "~root/own:latest"]
