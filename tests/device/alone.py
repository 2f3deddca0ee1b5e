# SPDX-License-Identifier: Apache-2.0
"""Scripts in a process of their own, for what a process does once."""

import forked
from private_daemon import Daemon


def run_alone(daemon: Daemon, source: str) -> str:
    """What it prints. It must end well."""
    done = forked.run("-c", source, DJINN_HOST=daemon.host)
    assert done.returncode == 0, done.stderr
    return done.stdout
