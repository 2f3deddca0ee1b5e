# SPDX-License-Identifier: Apache-2.0
"""What a program is told without being asked: a warning, once of each kind in a process."""

import re
import sys
import warnings

from djinn.errors import PerformanceWarning

# Where what a notice or an error says is explained.
GHOSTS = "/usr/share/doc/python3-djinn/GHOSTS.md (in a clone docs/GHOSTS.md)"

OURS = ("djinn", "transformers", "torch", "contextlib")

_told: dict[str, object] = {}


def once(sentence: str) -> None:
    """Sentences that differ in their numbers alone are of one kind."""
    kind = re.sub(r"\d+", "0", sentence)
    mine = object()
    if _told.setdefault(kind, mine) is not mine:  # in one go, whoever else comes here meanwhile
        return
    warnings.warn(sentence, PerformanceWarning, stacklevel=_users_level())


def _users_level() -> int:
    """The level of the innermost caller that is the program's own, as warn() counts from once()."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in OURS:
        level, frame = level + 1, frame.f_back
    return level


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


__all__ = ["GHOSTS", "once"]
