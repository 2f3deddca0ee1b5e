"""djinnctl on a real terminal: colours only there, tables that fit, short errors, progress."""

import json
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from private_daemon import BIN, Daemon, loaders_of, stopped, wait_until
from terminal import Shown, shown

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


@pytest.mark.parametrize("verb", LISTS)
@pytest.mark.parametrize("why", ["pipe", "NO_COLOR", "TERM=dumb", "no TERM"])
def test_no_escape_codes_off_a_terminal_or_where_they_are_not_wanted(
    daemon: Daemon, crowd: None, verb: str, why: str
) -> None:
    if why == "pipe":
        one = on_terminal(daemon, verb, pipe="stdout")
        assert one.piped
    else:
        changes = {"NO_COLOR": {"NO_COLOR": "1"}, "TERM=dumb": {"TERM": "dumb"}, "no TERM": {}}
        env = environment(daemon, **changes[why])
        if why == "no TERM":
            del env["TERM"]
        one = shown([str(BIN / "djinnctl"), verb], env)
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
    wait_until(lambda: len(loaders_of(daemon)) == 1, "a loader waits")
    with stopped(loaders_of(daemon)):
        ended = on_terminal(daemon, "load", str(large_model), "--timeout", "0.15", pipe="stdout")
    assert ended.code == 7
    *_, last = ended.text.split("\r")
    assert last.splitlines()[-3].startswith("djinnctl: It is not done")
