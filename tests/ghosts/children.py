# SPDX-License-Identifier: Apache-2.0
"""Processes that may crash: started with their output in a log, and how they ended, in words."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

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


def ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    telling = [line.strip() for line in lines if TELLING.search(line)]
    return f" ({telling[-1]})" if telling else ""


def worker_restarts(daemon: Daemon) -> int:
    return sum(worker["restarts"] for worker in daemon.status()["workers"])
