# SPDX-License-Identifier: Apache-2.0
"""The files of this tree."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def files() -> tuple[str, ...]:
    """Tracked files, and new ones that git does not ignore; sorted, as paths from the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(name for name in sorted(set(listed.split("\0"))) if (ROOT / name).is_file())
