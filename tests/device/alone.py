# SPDX-License-Identifier: Apache-2.0
"""Scripts in a process of their own, for what a process does once."""

import os
import subprocess
import sys

from private_daemon import Daemon


def run_alone(daemon: Daemon, source: str) -> str:
    """What it prints. It must end well."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "DJINN_HOST": daemon.host},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
