# SPDX-License-Identifier: Apache-2.0
"""A program in a fork is to whoever starts it what a process of `python` would be."""

import signal
from pathlib import Path

import forked
import pytest


@pytest.mark.parametrize(
    ("source", "code", "out", "err"),
    [
        ("print('said')", 0, "said\n", ""),
        ("raise SystemExit", 0, "", ""),
        ("import sys; sys.exit(5)", 5, "", ""),
        ("import os; os.write(1, b'raw'); os._exit(3)", 3, "raw", ""),
        ("print('before'); raise ValueError('no')", 1, "before\n", "ValueError: no\n"),
        ("import atexit; atexit.register(print, 'last'); print('first')", 0, "first\nlast\n", ""),
    ],
)
def test_its_end_is_told_with_what_it_said(source: str, code: int, out: str, err: str) -> None:
    done = forked.run("-c", source)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.endswith(err)


def test_it_has_its_arguments_its_environment_and_its_own_name(tmp_path: Path) -> None:
    look = "import os, sys\nprint(sys.argv[1:], os.environ['COLOUR'], __name__)"
    script = tmp_path / "script.py"
    script.write_text(look + "\nimport beside; print(beside.where)")
    (tmp_path / "beside.py").write_text("where = 'beside'")
    told = "['a', 'b'] green __main__\n"
    assert forked.run("-c", look, "a", "b", COLOUR="green").stdout == told
    assert forked.run(str(script), "a", "b", COLOUR="green").stdout == told + "beside\n"


def test_those_that_run_at_once_are_apart_and_one_that_is_killed_is_told() -> None:
    source = "for line in iter(input, 'end'): print(line, flush=True)"
    with forked.started("-c", source) as first, forked.started("-c", source) as second:
        for one, line in ((first, "1"), (second, "2"), (first, "3")):
            print(line, file=one.stdin, flush=True)
            assert one.stdout.readline() == f"{line}\n"
        assert first.pid != second.pid
        first.kill()
        assert first.wait(60) == -signal.SIGKILL
        print("end", file=second.stdin, flush=True)
        assert second.wait(60) == 0
