# SPDX-License-Identifier: Apache-2.0
"""Completion in bash, zsh and fish, typed on a terminal: verbs, options, and what lives."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from private_daemon import BIN, Daemon
from terminal import Terminal, shell

CTL = str(BIN / "djinnctl")
SHELLS = ("bash", "zsh", "fish")
KEY_PRESS_S = 1.0  # under 0.1 where nothing else runs; this bound holds on a busy machine too


@pytest.fixture(params=SHELLS)
def name(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


def set_up(name: str, directory: Path) -> tuple[list[str], str]:
    """The command of an interactive shell without anybody's settings, and its first line."""
    said = subprocess.run([CTL, "completion", name], capture_output=True, check=True, timeout=60)
    script = directory / "_djinnctl"
    script.write_bytes(said.stdout)
    if name == "bash":
        show_all = "bind 'set show-all-if-ambiguous on'; bind 'set enable-bracketed-paste off'"
        return ["bash", "--norc", "--noprofile", "-i"], f"source {script}; {show_all}"
    if name == "zsh":  # as a package installs it
        first = f"fpath=({directory} $fpath); autoload -Uz compinit; compinit -u -D"
        return ["zsh", "-f", "-i"], f"{first}; unsetopt zle_bracketed_paste prompt_sp 2>/dev/null"
    return ["fish", "--no-config", "-i"], f"source {script}; set fish_greeting"


def environment(host: str, home: Path) -> dict[str, str]:
    path = f"{BIN}:{os.environ['PATH']}"
    return {"DJINN_HOST": host, "PATH": path, "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}


class Typist:
    """Types at a shell, and says what became of a line."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.asked = 0

    def listed(self, line: str) -> str:
        """All that was shown when the line was completed."""
        begin = len(self.terminal.written)
        self.completed(line)
        return self.terminal.written[begin:].decode(errors="replace")

    def completes(self, line: str, expected: str) -> bool:
        """With ids of the daemon, which has 60 ms: on a busy machine people press the key again."""
        return any(self.completed(line) == expected for _ in range(20))

    def completed(self, line: str) -> str:
        """The line after a tab. It is not run but echoed: Ctrl-A goes to its beginning."""
        self.asked += 1
        self.terminal.type(f"{line}\t\x01echo line {self.asked}: \r")
        pattern = rf"(?<!echo )line {self.asked}: ([^\r\n]*)\r?\n".encode()
        self.terminal.read_until(lambda text: re.search(pattern, text) is not None, line)
        found = re.search(pattern, self.terminal.written)
        assert found is not None
        return found[1].decode()


@pytest.fixture
def typist(name: str, daemon: Daemon, tmp_path: Path) -> Iterator[Typist]:
    command, first = set_up(name, tmp_path)
    with shell(command, environment(daemon.host, tmp_path)) as terminal:
        terminal.type(first + "; echo rea''dy\r")
        terminal.read_until(lambda text: b"ready\r\n" in text, "the shell is ready")
        yield Typist(terminal)


@pytest.fixture
def model(daemon: Daemon, byte_model: Path) -> Iterator[str]:
    env = environment(daemon.host, byte_model)
    loaded = subprocess.run(
        [CTL, "load", str(byte_model)], env=env, capture_output=True, check=True, timeout=60
    )
    identity = loaded.stdout.decode().strip()
    yield identity
    subprocess.run([CTL, "unload", identity], env=env, check=True, timeout=60)


def session_named(daemon: Daemon, name: str) -> str:
    return next(s["id"] for s in daemon.observer.sessions() if s["name"] == name)


def test_verbs_and_options_and_words_are_completed(typist: Typist) -> None:
    assert typist.completed("djinnctl termi") == "djinnctl terminate"
    assert typist.completed("djinnctl --no-l") == "djinnctl --no-legend"
    assert typist.completed("djinnctl load --no-pi") == "djinnctl load --no-pin"
    assert typist.completed("djinnctl completion fi") == "djinnctl completion fish"
    assert typist.completed("djinnctl evict --to di") == "djinnctl evict --to disk"
    assert typist.completed("djinnctl help termi") == "djinnctl help terminate"
    assert typist.completed("djinnctl config sh") == "djinnctl config show"
    assert typist.completed("djinnctl --json=pr") == "djinnctl --json=pretty"
    assert typist.completed("djinnctl -q --timeout 3 progr") == "djinnctl -q --timeout 3 programs"


def test_all_verbs_are_offered(typist: Typist) -> None:
    listed = typist.listed("djinnctl ")
    help_text = subprocess.run([CTL, "--help"], capture_output=True, text=True, timeout=60).stdout
    verbs = re.findall(r"^  ([a-z]+)  ", help_text, re.MULTILINE)
    assert len(verbs) > 15
    assert [verb for verb in verbs if verb not in listed] == []
    assert "completion-ids" not in listed


def test_ids_of_models_are_completed(typist: Typist, model: str) -> None:
    for verb in ("pin", "unpin", "unload", "evict", "show"):
        line = f"djinnctl {verb} {model[:3]}"
        assert typist.completes(line, f"djinnctl {verb} {model}")


def test_names_of_models_are_completed(typist: Typist, model: str) -> None:
    for verb in ("pin", "evict", "show"):
        assert typist.completes(f"djinnctl {verb} byt", f"djinnctl {verb} bytes")


def test_ids_of_sessions_are_completed(typist: Typist, daemon: Daemon, model: str) -> None:
    with daemon.connect("to be completed"):
        session = session_named(daemon, "to be completed")
        for verb in ("cancel", "terminate", "show"):
            line = f"djinnctl {verb} {session[:8]}"
            assert typist.completes(line, f"djinnctl {verb} {session}")
        assert typist.completed(f"djinnctl cancel {model[:8]}") == f"djinnctl cancel {model[:8]}"


def test_ids_come_from_the_daemon_that_the_line_names(
    typist: Typist, daemon: Daemon, model: str
) -> None:
    line = f"djinnctl -H unix:/nonexistent pin {model[:3]}"
    assert typist.completed(line) == line
    line = f"djinnctl -H {daemon.host} pin {model[:3]}"
    assert typist.completes(line, f"djinnctl -H {daemon.host} pin {model}")


def test_directories_are_completed_where_a_model_is_wanted(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "only-directory").mkdir()
    line = f"djinnctl load {tmp_path}/only-d"
    assert typist.completed(line).rstrip("/ ") == f"djinnctl load {tmp_path}/only-directory"


def test_without_a_daemon_no_ids_are_offered_and_nothing_is_said(name: str, tmp_path: Path) -> None:
    command, first = set_up(name, tmp_path)
    with shell(command, environment("unix:/nonexistent", tmp_path)) as terminal:
        terminal.type(first + "; echo rea''dy\r")
        terminal.read_until(lambda text: b"ready\r\n" in text, "the shell is ready")
        shown = Typist(terminal).listed("djinnctl unpin ")
    assert "nonexistent" not in shown
    assert "djinnd" not in shown


def fastest_s(action: Callable[[], object], tries: int = 10) -> float:
    """Of several: what else the machine does is not asked for."""
    times = []
    for _ in range(tries):
        begin = time.monotonic()
        action()
        times.append(time.monotonic() - begin)
    return min(times)


def ids_from(host: str, home: Path) -> Callable[[], bytes]:
    """What a script runs at a key press."""
    program = 'host=; source "$0/_djinnctl"; COMP_LINE="djinnctl show " COMP_POINT=14; _djinnctl'
    command = ["bash", "--norc", "-c", program, str(home)]
    env = environment(host, home)
    return lambda: subprocess.run(command, env=env, capture_output=True, timeout=60).stdout


def test_no_key_press_waits_for_ids(daemon: Daemon, model: str, tmp_path: Path) -> None:
    set_up("bash", tmp_path)
    assert fastest_s(ids_from(daemon.host, tmp_path)) < KEY_PRESS_S
    assert fastest_s(ids_from("unix:/nonexistent", tmp_path)) < KEY_PRESS_S


def test_a_daemon_that_does_not_answer_delays_no_key_press(tmp_path: Path) -> None:
    set_up("bash", tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        took_s = fastest_s(ids_from(f"unix:{tmp_path}/silent", tmp_path))
    assert 0.05 < took_s < KEY_PRESS_S
