# SPDX-License-Identifier: Apache-2.0
"""Where djinnd takes its place: its directory, its programs; and what is told where none comes."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import ctl
from private_daemon import BIN, DEADLINE_S, Daemon


@dataclass(frozen=True)
class Silent:
    """Somebody who listens where djinnd would, as systemd does, and answers nobody."""

    directory: Path
    host: str


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Silent]:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "djinnd.sock"))
        listening.listen(8)
        yield Silent(tmp_path, f"unix:{tmp_path}/djinnd.sock")


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("words", "what_there_is"),
    [
        (["--no-such-option"], ()),
        (["--threads"], ()),
        (["--threads", "many"], ("1 to 1024",)),
        (["--isa", "sse9"], ("base", "avx2", "avx512-bf16", "amx")),
        (["--numerics", "quick"], ("exact", "fast", "fast-only")),
        (["--policy", "lifo"], ("fair", "fifo")),
    ],
)
def test_a_mistake_in_the_command_line_of_djinnd_is_told(
    words: list[str], what_there_is: tuple[str, ...]
) -> None:
    told = ended(str(BIN / "djinnd"), *words)
    assert (told.returncode, told.stdout) == (2, "")
    first, second = told.stderr.splitlines()
    assert first.startswith("djinnd: ") and words[0].lstrip("-") in first
    assert all(one in first for one in what_there_is)
    assert second == "'djinnd --help' lists all options."


def test_a_socket_that_somebody_listens_at_is_not_taken_from_them(silent: Silent) -> None:
    file = silent.directory / "djinnd.sock"
    before = file.stat().st_ino
    done = ended(str(BIN / "djinnd"), "--user", "--runtime-dir", str(silent.directory))
    assert done.returncode == 1
    assert f"Somebody listens at {file}" in done.stderr
    assert file.stat().st_ino == before


def test_a_socket_that_another_put_in_our_place_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path, ())
    file = tmp_path / "djinnd.sock"
    file.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(file))
        daemon.stop()
        assert file.exists()


def test_a_djinnd_that_takes_connections_and_does_not_answer_is_told_of(silent: Silent) -> None:
    said = ctl(silent, "--timeout", "3", "ps")
    assert said.code != 0
    assert "has not answered yet" in said.err
    assert "journalctl -u djinnd" in said.err
    assert "has not answered" not in ctl(silent, "--quiet", "--timeout", "3", "ps").err


def installed(tmp_path: Path, *programs: str) -> Path:
    """djinnd in bin, and these programs where packages put them."""
    private = tmp_path / "libexec" / "djinn"
    private.mkdir(parents=True)
    for name in programs:
        (private / name).symlink_to(BIN / name)
    (tmp_path / "bin").mkdir()
    shutil.copy(BIN / "djinnd", tmp_path / "bin" / "djinnd")
    return tmp_path / "bin"


def test_an_installed_djinnd_finds_its_programs(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    programs = installed(tmp_path, "djinn-worker", "djinn-loader")
    daemon = Daemon(tmp_path / "run", (), programs)
    try:
        with daemon.connect("first"):
            assert daemon.worker()["pid"] > 0
    finally:
        daemon.stop()


@pytest.mark.parametrize("absent", ["djinn-worker", "djinn-loader"])
def test_a_djinnd_without_its_programs_names_them_and_ends(tmp_path: Path, absent: str) -> None:
    programs = installed(tmp_path, *({"djinn-worker", "djinn-loader"} - {absent}))
    done = ended(str(programs / "djinnd"), "--user", "--runtime-dir", str(tmp_path / "run"))
    assert done.returncode == 1
    assert f"bin/{absent}, which is no program (No such file" in done.stderr
    assert f"--{absent.removeprefix('djinn-')}" in done.stderr
    assert not os.path.exists(tmp_path / "run")


def test_what_is_wrong_with_the_place_of_the_socket_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "no/run"
    done = ended(str(BIN / "djinnd"), "--user", "--runtime-dir", str(nowhere))
    assert done.returncode == 1
    assert f"make the runtime directory {nowhere}: No such file or directory" in done.stderr
    place = ("--root", str(tmp_path), "--runtime-dir", str(tmp_path / "run"))
    done = ended(str(BIN / "djinnd"), *place, "--socket-group", "no-such-group")
    assert done.returncode == 1
    assert "There is no group 'no-such-group'" in done.stderr
