# SPDX-License-Identifier: Apache-2.0
"""A fork server that hangs, dies or is printed beside is told in words. No ghost is needed."""

import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import compare
import fork_server
import pytest
from fork_server import ForkServer

LIMIT_S = 60.0
HEADER = """
import os, signal, sys
from pathlib import Path
from fork_server import Asked, serve
"""
# A request is a piece of Python, which the fork runs.
RUNS = """
print("a library says hello", flush=True)
serve(lambda asked: Asked(Path(asked["log"]), asked["limit_s"], lambda: exec(asked["run"])))
"""
Started = Callable[..., ForkServer]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts a server whose script ends so."""
    servers: list[ForkServer] = []

    def start(script: str, limit_s: float = LIMIT_S) -> ForkServer:
        path = tmp_path / "server.py"
        path.write_text(HEADER + script)
        folders = [str(Path(one).parent) for one in (fork_server.__file__, compare.zoo.__file__)]
        folders += [str(Path(fork_server.__file__).parents[1] / "e2e")]
        folders += [os.environ.get("PYTHONPATH", "")]
        servers.append(ForkServer([str(path)], {"PYTHONPATH": ":".join(folders)}, limit_s))
        return servers[-1]

    yield start
    for one in servers:
        one.close()


def request(log: Path, run: str, limit_s: float = LIMIT_S) -> dict[str, str | float]:
    return {"log": str(log), "limit_s": limit_s, "run": run}


def test_forks_run_one_after_another_and_what_is_printed_is_no_answer(
    started: Started, tmp_path: Path
) -> None:
    server, log = started(RUNS), tmp_path / "log"
    for word in ("one", "two"):
        assert server.ask(request(log, f"print({word!r})")) is None
        assert log.read_text() == f"{word}\n"


def test_a_fork_reads_nothing_and_has_none_of_the_pipes(started: Started, tmp_path: Path) -> None:
    server, log = started(RUNS), tmp_path / "log"
    look = """
for n in filter(lambda n: os.path.lexists(f"/proc/self/fd/{n}"), range(64)):
    print(n, os.readlink(f"/proc/self/fd/{n}"))
"""
    assert server.ask(request(log, f"assert sys.stdin.read() == ''{look}")) is None
    held = dict(line.split(" ", 1) for line in log.read_text().splitlines())
    assert [held[n] for n in "012"] == [os.devnull, str(log), str(log)]
    assert not [one for one in held.values() if one.startswith("pipe:")]


def test_a_fork_that_ends_badly_is_told_and_the_next_one_runs(
    started: Started, tmp_path: Path
) -> None:
    server, log = started(RUNS), tmp_path / "log"
    failed = server.ask(request(log, "raise ValueError('no')"))
    assert failed == "the process ended with 1 (ValueError: no)"
    late = server.ask(request(log, "signal.pause()", limit_s=0.1))
    assert late == "the process did not end within 0 s"
    assert server.ask(request(log, "")) is None


def test_a_server_that_ends_where_it_imports_is_told_each_time(
    started: Started, tmp_path: Path
) -> None:
    server = started("sys.exit(3)")
    for _ in range(2):
        told = server.ask(request(tmp_path / "log", ""))
        assert told == "the forking process ended with 3"


def test_a_server_that_dies_over_a_request_is_told_with_its_signal(
    started: Started, tmp_path: Path
) -> None:
    server = started("serve(lambda asked: os.abort())")
    told = server.ask(request(tmp_path / "log", ""))
    assert told == "the forking process was killed by SIGABRT"


def test_a_server_that_hangs_is_told_at_the_limit_and_killed(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "START_LIMIT_S", 0.1)
    server = started("signal.pause()", limit_s=0.1)
    late, gone = (server.ask(request(tmp_path / "log", "")) for _ in range(2))
    assert late == "the forking process did not answer within 0 s"
    assert gone == "the forking process was killed by SIGKILL"


@pytest.mark.parametrize("arguments", [[], ["llama"], ["--serve", "llama"]])
def test_compare_refuses_what_it_does_not_do(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit, match="takes --serve alone"):
        runpy.run_path(compare.__file__, run_name="__main__")
