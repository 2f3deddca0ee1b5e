# SPDX-License-Identifier: Apache-2.0
"""djinnctl on a real terminal: colours only there, tables that fit, short errors, progress."""

import json
import os
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from private_daemon import BIN, Daemon, no_load_goes_on, wait_until
from terminal import Shown, Terminal, shell, shown

LISTS = ("status", "sessions", "ps", "devices", "mem", "programs", "version")
MISTAKES = (
    ["no-such-verb"],
    ["ps", "extra"],
    ["show", "not-an-id"],
    ["show", "ffffffffffff"],
    ["pin"],
    ["--json=loud", "ps"],
    ["--timeout", "soon", "ps"],
    ["-H", "tcp:1.2.3.4", "ps"],
    ["-H", "unix:/nonexistent", "ps"],
    ["load", "/nonexistent"],
)
LARGE_BYTES = 768 << 20


def environment(daemon: Daemon, **changes: str) -> dict[str, str]:
    without = {"NO_COLOR", "COLUMNS", "LINES"}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "DJINN_HOST": daemon.host, "TERM": "xterm-256color", **changes}


def on_terminal(daemon: Daemon, *words: str, pipe: str | None = None, **changes: str) -> Shown:
    return shown([str(BIN / "djinnctl"), *words], environment(daemon, **changes), pipe=pipe)


@pytest.fixture
def crowd(daemon: Daemon, byte_model: Path) -> Iterator[None]:
    """A model, and sessions with names as long as they may be."""
    model = on_terminal(daemon, "load", str(byte_model), pipe="stdout").piped.strip()
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(daemon.connect(f"{number} " + "long-name-" * 5))
        yield
    assert on_terminal(daemon, "unload", model).code == 0


@pytest.mark.parametrize("verb", LISTS)
def test_a_table_fits_80_columns_under_a_bold_header(
    daemon: Daemon, crowd: None, verb: str
) -> None:
    one = on_terminal(daemon, verb)
    assert one.code == 0
    header = one.text.splitlines()[0]
    assert header.startswith("\x1b[1m") and header.endswith("\x1b[0m")
    plain = one.text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "\x1b" not in plain
    assert all(len(line) <= 80 for line in plain.splitlines()), plain


def test_names_are_shortened_on_a_terminal_alone(daemon: Daemon, crowd: None) -> None:
    name = "0 " + "long-name-" * 5
    assert "0 lo" in on_terminal(daemon, "sessions").text
    assert name not in on_terminal(daemon, "sessions").text
    assert name in on_terminal(daemon, "sessions", pipe="stdout").piped


def test_a_name_from_right_to_left_turns_nothing_behind_it_on_a_terminal_alone(
    daemon: Daemon,
) -> None:
    name = "\u05d0\u05d1 7"
    shown_name = f"\u2068{name}\u2069"
    plain = "plain 7"
    with daemon.connect(name), daemon.connect(plain):
        for verb in ("sessions", "top -b -n 1"):
            one = on_terminal(daemon, *verb.split())
            rows = one.text.splitlines()
            (named,) = [row for row in rows if shown_name in row]
            (other,) = [row for row in rows if plain in row]
            assert "\u2068" not in other
            as_wide = named.replace(shown_name, name)
            assert as_wide.index(" idle ") == other.index(" idle ")
        listed = on_terminal(daemon, "sessions", pipe="stdout").piped
        json_listed = on_terminal(daemon, "--json", "sessions").text
    assert name in listed and "\u2068" not in listed
    assert name in [one["name"] for one in json.loads(json_listed)["items"]]
    mistaken = on_terminal(daemon, "show", name)
    assert mistaken.code == 4
    assert "'\u2068\u05d0\u05d1\u2069 7'" in mistaken.text
    assert f"'{name}'" in on_terminal(daemon, "show", name, pipe="stderr").piped


@pytest.mark.parametrize("words", [*LISTS, "top -n 2 -d 0.1"])
@pytest.mark.parametrize("why", ["pipe", "NO_COLOR", "TERM=dumb", "no TERM"])
def test_no_escape_codes_off_a_terminal_or_where_they_are_not_wanted(
    daemon: Daemon, crowd: None, words: str, why: str
) -> None:
    if why == "pipe":
        one = on_terminal(daemon, *words.split(), pipe="stdout")
        assert one.piped
    else:
        changes = {"NO_COLOR": {"NO_COLOR": "1"}, "TERM=dumb": {"TERM": "dumb"}, "no TERM": {}}
        env = environment(daemon, **changes[why])
        if why == "no TERM":
            del env["TERM"]
        one = shown([str(BIN / "djinnctl"), *words.split()], env)
        assert one.text
    assert one.code == 0
    assert "\x1b" not in one.text + one.piped


@pytest.mark.parametrize("words", [["ps"], ["ps", "--no-pager"]])
def test_nothing_pages(daemon: Daemon, words: list[str]) -> None:
    ended = on_terminal(daemon, *words, PAGER="false", SYSTEMD_PAGER="false")
    assert ended.code == 0
    assert "NAME" in ended.text


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_an_error_is_at_most_three_lines_of_plain_text(daemon: Daemon, words: list[str]) -> None:
    ended = on_terminal(daemon, *words)
    assert ended.code in (2, 3, 4)
    assert 1 <= len(ended.text.splitlines()) <= 3
    assert "\x1b" not in ended.text


# --- the live view

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
CTRL_Z = "\x1a"


@contextmanager
def watching(daemon: Daemon, *options: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    with Terminal() as terminal:
        before = termios.tcgetattr(terminal.slave)
        command = ["setsid", "--ctty", str(BIN / "djinnctl"), *options, "top", "-d", "3600"]
        with subprocess.Popen(
            command,
            env=environment(daemon),
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
        ) as process:
            try:
                terminal.read_until(lambda text: b"q: quit" in text, "a view is shown")
                assert terminal.written.startswith(ENTER)
                yield terminal, process
                process.wait(60)
            finally:
                process.kill()
        terminal.read_until(lambda text: text.count(LEAVE) == text.count(ENTER), "it is left")
        assert termios.tcgetattr(terminal.slave) == before


def test_the_live_view_ends_with_its_key(daemon: Daemon) -> None:
    with watching(daemon) as (terminal, process):
        terminal.type("q")
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_the_live_view_gives_the_terminal_back_when_a_signal_ends_it(
    daemon: Daemon, number: signal.Signals
) -> None:
    with watching(daemon) as (_, process):
        process.send_signal(number)
    assert process.returncode == -number


def test_the_live_view_gives_the_terminal_back_when_its_time_is_over(daemon: Daemon) -> None:
    with watching(daemon, "--timeout", "5") as (_, process):
        pass
    assert process.returncode == 7


def test_the_live_view_makes_way_for_the_shell_and_comes_back(daemon: Daemon) -> None:
    jobs = f"set -m; {BIN}/djinnctl top -d 3600; echo the shell; read line; fg; exit"
    with shell(["bash", "--norc", "-c", jobs], environment(daemon)) as terminal:
        terminal.read_until(lambda text: b"q: quit" in text, "a view is shown")
        terminal.type(CTRL_Z)
        terminal.read_until(lambda text: b"the shell" in text, "it has stopped")
        assert terminal.written.rindex(LEAVE) < terminal.written.index(b"the shell")
        assert termios.tcgetattr(terminal.slave)[3] & termios.ECHO
        terminal.type("\r")
        terminal.read_until(lambda text: text.count(b"q: quit") >= 2, "it shows a view again")
        assert terminal.written.count(ENTER) == 2
        terminal.type("q")
        terminal.read_until(lambda text: text.count(LEAVE) == 2, "it has ended")


def test_without_a_shell_there_is_nobody_to_make_way_for(daemon: Daemon) -> None:
    with watching(daemon) as (terminal, process):
        terminal.type(CTRL_Z)
        terminal.read_until(lambda text: text.count(b"q: quit") >= 2, "it goes on at once")
        terminal.type("q")
    assert process.returncode == 0


# --- progress


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes a while to read: one tensor, all zero, in a sparse file."""
    directory = tmp_path_factory.mktemp("models") / "large-model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    offsets = {"data_offsets": [0, LARGE_BYTES], "dtype": "U8", "shape": [LARGE_BYTES]}
    header = json.dumps({"x": offsets}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + LARGE_BYTES)
    return directory


def load(daemon: Daemon, model: Path, *words: str, pipe: str | None, **changes: str) -> Shown:
    ended = on_terminal(daemon, "load", str(model), *words, pipe=pipe, **changes)
    assert ended.code == 0
    said = ended.piped if pipe == "stdout" else ended.text
    identity = re.findall(r"^[0-9a-f]{12}$", said.replace("\r", "\n"), re.MULTILINE)
    assert len(identity) == 1
    subprocess.run(
        [BIN / "djinnctl", "unload", identity[0]], env=environment(daemon), check=True, timeout=60
    )
    return ended


def test_a_load_shows_one_line_that_is_rewritten_and_ends_clean(
    daemon: Daemon, large_model: Path
) -> None:
    ended = load(daemon, large_model, pipe="stdout")
    assert "\n" not in ended.text and "\x1b" not in ended.text
    begin, *looks, last, end = ended.text.split("\r")
    assert (begin, last.strip(" "), end) == ("", "", "")
    assert all(len(look) <= 79 for look in [*looks, last])
    bars = [look for look in looks if "%" in look]
    assert bars
    for look in bars:
        assert re.match(r"large-model  +\d+%  \[#*\.*\]  [\d.]+ [KMG]?i?B/768 MiB", look), look
    percents = [int(look.split("%")[0].split()[-1]) for look in bars]
    assert percents == sorted(percents)
    # Each line covers the one before it.
    assert len({len(look) for look in [*looks, last]}) == 1


def test_a_load_that_takes_its_time_is_not_taken_for_a_daemon_that_is_silent(
    daemon: Daemon, large_model: Path
) -> None:
    command = [str(BIN / "djinnctl"), "load", str(large_model)]
    with Terminal() as terminal, ExitStack() as until_seconds_have_gone:
        until_seconds_have_gone.enter_context(no_load_goes_on(daemon))
        streams = {"stdin": terminal.slave, "stdout": subprocess.PIPE, "stderr": terminal.slave}
        with subprocess.Popen(command, env=environment(daemon), **streams) as process:
            terminal.hang_up()
            # It looks ten times a second.
            terminal.read_until(lambda text: text.count(b"\r") > 25, "it waits for seconds")
            until_seconds_have_gone.close()
            while terminal.read():
                pass
            assert process.stdout is not None
            model = process.stdout.read().decode().strip()
            assert process.wait() == 0
    assert b"has not answered" not in terminal.written
    assert on_terminal(daemon, "unload", model).code == 0


@pytest.mark.parametrize("why", ["pipe", "TERM=dumb", "quiet"])
def test_a_load_shows_nothing_where_no_line_can_be_rewritten(
    daemon: Daemon, large_model: Path, why: str
) -> None:
    if why == "pipe":
        assert load(daemon, large_model, pipe="stderr").piped == ""
    elif why == "quiet":
        assert load(daemon, large_model, "--quiet", pipe="stdout").text == ""
    else:
        assert load(daemon, large_model, pipe="stdout", TERM="dumb").text == ""


def test_an_eviction_shows_a_line_that_ends_clean(daemon: Daemon, byte_model: Path) -> None:
    identity = on_terminal(daemon, "load", str(byte_model), "--no-pin", pipe="stdout").piped.strip()
    wait_until(lambda: daemon.observer.models()[0]["sha256"] is not None, "it is hashed")
    ended = on_terminal(daemon, "evict", identity, pipe="stdout")
    assert ended.code == 0, ended.text
    begin, *looks, last, end = ended.text.split("\r")
    assert (begin, last.strip(" "), end) == ("", "", "")
    assert looks[0].startswith("evict    0%  [")
    assert "\n" not in ended.text and "\x1b" not in ended.text
    assert on_terminal(daemon, "unload", identity).code == 0


def test_a_load_that_runs_out_of_time_says_so_on_a_line_of_its_own(
    daemon: Daemon, large_model: Path
) -> None:
    with no_load_goes_on(daemon):
        ended = on_terminal(daemon, "load", str(large_model), "--timeout", "0.15", pipe="stdout")
    assert ended.code == 7
    *_, last = ended.text.split("\r")
    assert last.splitlines()[-2].startswith("djinnctl: It is not done")
