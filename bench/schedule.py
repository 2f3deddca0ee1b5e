# SPDX-License-Identifier: Apache-2.0
"""What a lane decided last, as `djinnctl show --schedule` says."""

import json
import subprocess
from typing import Any

from private_daemon import BIN, Daemon


def decisions(daemon: Daemon) -> list[dict[str, Any]]:
    """Of all lanes, each one's oldest first."""
    words = [str(BIN / "djinnctl"), "-H", daemon.host, "--json", "show", "--schedule"]
    shown = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return [one for lane in shown["items"] for one in lane["decisions"]]
