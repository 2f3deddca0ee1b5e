# SPDX-License-Identifier: Apache-2.0
"""Loads that fail: the log alone says whose they were, of which files, and why."""

import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import djinn
import pytest
from command_line import ctl, events_of
from other_user import User
from private_daemon import Daemon, running
from safetensors.torch import load_file, save_file

KEPT_BYTES = 1_000_000
FIRST = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup")


def cut(path: Path) -> str:
    """Cuts a file short; how an error says so."""
    whole = path.stat().st_size
    os.truncate(path, KEPT_BYTES)
    return f"it is cut short, with {KEPT_BYTES} of {whole} bytes. Fetch or copy it anew."


def last_failure(daemon: Daemon) -> dict[str, Any]:
    return events_of(daemon, "model-failed")[-1]


@pytest.fixture
def bad(byte_model: Path, tmp_path: Path) -> Path:
    shutil.copytree(byte_model, tmp_path / "bad")
    return tmp_path / "bad"


def test_a_file_that_was_cut_short_is_named_with_its_sizes(daemon: Daemon, bad: Path) -> None:
    why = cut(bad / "model.safetensors")
    ended = ctl(daemon, "load", str(bad))
    assert ended.code == 10
    assert f"{bad}/model.safetensors: This is not a valid safetensors file" in ended.err
    assert why.split(". ")[0] in ended.err
    with daemon.connect("python") as session, pytest.raises(djinn.Error) as refused:
        session.load(bad)
    assert str(refused.value).startswith(f"{bad}/model.safetensors: ")
    assert why in str(refused.value)


def test_the_log_says_whose_load_failed_of_what_and_why(daemon: Daemon, bad: Path) -> None:
    why = cut(bad / "model.safetensors")
    with daemon.connect("python") as session, pytest.raises(djinn.Error):
        session.load(bad)
    event = last_failure(daemon)
    sentence = f"model.safetensors: This is not a valid safetensors file: {why}"
    assert event["session"] == session.id
    assert event["uid"] == os.getuid()
    assert event["path"] == str(bad)
    assert (event["error"], event["reason"]) == ("malformed", sentence)
    line = f"{event['text']}, from {bad}: {sentence}"
    assert f"djinnd: {line}\n" in daemon.log.read_text()
    assert line in ctl(daemon, "events").text()
    assert (
        f"of user {pwd.getpwuid(os.getuid()).pw_name} could not be loaded for session {session.id}"
        in line
    )


def test_of_several_files_the_bad_one_is_named(daemon: Daemon, bad: Path) -> None:
    whole = bad / "model.safetensors"
    tensors = load_file(whole)
    whole.unlink()
    files = [bad / f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for number, file in enumerate(files):
        save_file(dict(list(tensors.items())[number::3]), file)
    why = cut(files[1])
    with daemon.connect("python") as session, pytest.raises(djinn.Error) as refused:
        session.load(files)
    assert str(refused.value).startswith(f"{files[1]}: ")
    event = last_failure(daemon)
    assert event["path"] == str(bad)
    assert event["reason"].startswith(f"{files[1].name}: ")
    assert why in event["reason"]


def test_a_path_that_steers_terminals_does_not_reach_the_log_as_it_is(
    daemon: Daemon, bad: Path
) -> None:
    sly = bad.with_name("red\x1b[31m\nline")
    bad.rename(sly)
    cut(sly / "model.safetensors")
    with daemon.connect("python") as session, pytest.raises(djinn.Error):
        session.load(sly)
    event = last_failure(daemon)
    assert event["path"] == str(sly.with_name("red?[31m?line"))
    assert "\x1b" not in daemon.log.read_text()
    assert "\x1b" not in ctl(daemon, "events").text()


def test_a_load_without_memory_says_what_the_session_holds_itself(byte_model: Path) -> None:
    with (
        running("--memory", str(56 << 20)) as daemon,
        daemon.connect("large", staging_bytes=48 << 20) as session,
    ):
        (mine,) = [one for one in ctl(daemon, "sessions", "-j").items() if one["id"] == session.id]
        with pytest.raises(djinn.Error) as refused:
            session.load(byte_model)
        assert refused.value.code == "out_of_memory"
        own = f"{mine['granted_bytes'] / (1 << 20):.1f} MiB"
        assert f"This session itself holds {own}." in str(refused.value)
        assert last_failure(daemon)["reason"] == str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become another user")
def test_the_path_of_a_failed_load_is_for_its_user_and_administrators(
    bad: Path, tmp_path: Path, place: Path
) -> None:
    cut(bad / "model.safetensors")
    with running("--admin-group", "games", socket_group="nogroup") as daemon:
        daemon.directory.chmod(0o755)
        with daemon.connect("root's") as session, pytest.raises(djinn.Error):
            session.load(bad)
        assert last_failure(daemon)["path"] == str(bad)
        with FIRST.acting():
            assert events_of(daemon, "model-failed") == []
            assert str(bad) not in ctl(daemon, "events").text()
