# SPDX-License-Identifier: Apache-2.0
"""Processes that may crash: started with their output in a log, and how they ended, in words."""

import faulthandler
import os
import re
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from private_daemon import Daemon

# Nothing is looked up in a network, and no bar is drawn into a log.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "GOMP_SPINCOUNT": "5000"}
TELLING = re.compile(
    r"^Timeout \(|\w(Error|Exception)\b|\b(error|Fatal|terminate|Assertion|what\(\))", re.I
)


def python(log: Path, limit_s: float, script: str, *arguments: str) -> str | None:
    """Runs a script of this folder; None when it ended well, else a sentence."""
    folder = Path(__file__).parent
    command = [sys.executable, "-X", "faulthandler", str(folder / script), *arguments]
    with log.open("w") as out:
        try:
            code = subprocess.run(
                command,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=limit_s,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"the process did not end within {limit_s:.0f} s"
    return None if code == 0 else f"the process {ending(code)}{last_words(log)}"


def forked(log: Path, limit_s: float, run: Callable[[], None]) -> str | None:
    """Runs it in a fork of this process, which reads nothing; None when it ended well, else a
    sentence."""
    child = os.fork()
    if child == 0:
        _run_and_exit(log, run)
    ended, _, _ = select.select([os.pidfd_open(child)], [], [], limit_s)
    if not ended:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        return f"the process did not end within {limit_s:.0f} s"
    return None if code == 0 else f"the process {ending(code)}{last_words(log)}"


def _run_and_exit(log: Path, run: Callable[[], None]) -> NoReturn:
    """In the child. No handler of the parent's runs: what they would end is the parent's."""
    code = 1
    try:
        with open(os.devnull) as nothing, log.open("w") as out:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        faulthandler.enable()
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    telling = [line.strip() for line in lines if TELLING.search(line)]
    return f" ({telling[-1]})" if telling else ""


def worker_restarts(daemon: Daemon) -> int:
    return sum(worker["restarts"] for worker in daemon.status()["workers"])
