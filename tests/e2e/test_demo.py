# SPDX-License-Identifier: Apache-2.0
"""examples/demo.py shows what it says it shows."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import djinn
import numpy as np
import pytest
from private_daemon import BIN, ROOT, Daemon, running, wait_until

DEMO = ROOT / "examples" / "demo.py"
NOTE = re.compile(r"\n    \[kill -9 (\d+), the worker\]\n *")


def run_demo(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env={
            **{name: value for name, value in os.environ.items() if name != "DJINN_HOST"},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(djinn.__file__).parents[1]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


@dataclass(frozen=True)
class Shown:
    """What a run of the demo printed, and the daemon that it ran against."""

    daemon: Daemon
    text: str

    def table(self, verb: str) -> list[dict[str, str]]:
        """The rows that djinnctl printed, by column."""
        lines = self.text.split(f"$ djinnctl {verb}\n")[1].split("\n\n")[0].splitlines()
        header, *rows = [re.split(r"  +", line.strip()) for line in lines]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def writings(self) -> list[str]:
        """The text of the undisturbed generation and that of the disturbed one."""
        first, second = self.text.split("\n\nThe same again")
        return [
            first.split("models/bytes\n\n")[1],
            second.split("killed.\n\n")[1].split("\n\nBoth texts")[0],
        ]


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    with running() as daemon:
        done = run_demo(DJINN_HOST=daemon.host, COLUMNS="80")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        yield Shown(daemon, done.stdout)


@pytest.mark.ci
def test_the_second_client_finds_the_model_resident(shown: Shown) -> None:
    told = re.findall(
        r"^Client (\d), process (\d+), opened MiniLM; (.*):\n"
        r"    \S+ ms, (.*) read, (.*) of weights in djinnd$",
        shown.text,
        re.MULTILINE,
    )
    (_, pid_1, how_1, read_1, weights_1), (_, pid_2, how_2, read_2, weights_2) = told
    assert pid_1 != pid_2
    assert (how_1, how_2) == ("it was not resident", "it was resident")
    assert (read_1, read_2) == (weights_1, "nothing")
    assert weights_1 == weights_2


@pytest.mark.ci
def test_djinnctl_shows_one_model_with_two_leases_and_both_clients(shown: Shown) -> None:
    (model,) = shown.table("ps")
    assert model["STATE"] == "resident"
    assert model["REFS"] == "2"
    rows = shown.table("sessions")
    assert sorted(row["APP"] for row in rows) == ["client-1", "client-2", "observer"]
    sessions = {row["APP"]: row for row in rows}
    assert sessions["client-1"]["PID"] != sessions["client-2"]["PID"]
    assert sessions["client-1"]["SHARED"] == sessions["client-2"]["SHARED"] == model["SIZE"]


@pytest.mark.ci
def test_each_sentence_is_most_like_the_one_that_means_the_same(shown: Shown) -> None:
    rows = re.findall(r"^\S.*\. +((?:-?\d\.\d\d[* ]? *){4})$", shown.text, re.MULTILINE)
    starred = [["*" in cell for cell in row.split()] for row in rows]
    assert starred == np.eye(4, dtype=bool).tolist()


@pytest.mark.ci
def test_the_killed_worker_changes_no_character(shown: Shown) -> None:
    undisturbed, disturbed = shown.writings()
    before, killed, after = NOTE.split(disturbed)
    assert before + after == undisturbed
    assert undisturbed.startswith(":daemon: /d")
    assert min(len(before), len(after)) > 25
    worker = shown.daemon.worker()
    assert f"worker {killed} died" in shown.text
    assert f"worker {worker['pid']} went on" in shown.text
    assert worker["restarts"] == 1
    assert "nothing was read from a file again" in shown.text


@pytest.mark.ci
def test_it_prints_plain_text_that_fits_a_terminal(shown: Shown) -> None:
    assert all(character.isprintable() or character == "\n" for character in shown.text)
    ours = re.sub(r"\$ djinnctl .*?\n\n", "", shown.text, flags=re.DOTALL)
    assert max(map(len, ours.splitlines())) <= 80


@pytest.mark.ci
def test_it_leaves_nothing_behind(shown: Shown) -> None:
    wait_until(lambda: shown.daemon.status()["sessions"] == 1, "only the observer is attached")
    wait_until(lambda: shown.daemon.status()["memory_sessions_bytes"] == 0, "no memory is held")


def test_without_a_daemon_it_says_how_to_start_it() -> None:
    done = run_demo()
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"demo: DJINN_HOST .*`\./dev run`.*\n", done.stderr)


# --- the screen


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_character_is_shown_once_it_is_whole(
    demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = demo.Screen()
    shown = []
    for byte in "é€!".encode():
        screen.write(bytes([byte]))
        shown.append(capsys.readouterr().out)
    assert shown == ["", "é", "", "", "€", "!"]


def test_bytes_that_are_no_text_and_those_that_steer_a_terminal_are_replaced(
    demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = demo.Screen()
    screen.write(b"a\x1b[2Jb\r\xffc\xe2\x80")
    screen.end()
    assert capsys.readouterr().out == "a?[2Jb?\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}\n"


def test_text_is_broken_at_spaces_before_a_narrow_terminal_would(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "one word after another is put on the screen and none of them is torn apart"
    screen = demo.Screen()
    screen.write(text.encode())
    lines = capsys.readouterr().out.split("\n")
    assert " ".join(lines) == text
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
