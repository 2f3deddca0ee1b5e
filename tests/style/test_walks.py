# SPDX-License-Identifier: Apache-2.0
"""What docs/ONE_*.md walk through is there: files, and in the code the names: each in the file
that stands behind it, and members in a file of their class."""

import functools
import re
from pathlib import Path

import pytest
from repo import CPP, ROOT, expect_none, files, files_with, text_of

WALKS = [file for file in files() if re.fullmatch(r"docs/ONE_\w+\.md", file)]
QUOTED = re.compile(r"`([^`\s]+)`")
NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")
PLACED = re.compile(r"`([^`\s]+)`\s+\(`([^`\s]+/[^`\s]+\.\w+)`")
SCOPE = re.compile(r"^(?:class|struct|namespace) (?:\w+::)*(\w+)", re.MULTILINE)


def both_halves(file: str) -> str:
    """What a header and its .cc say, given either."""
    halves = {file, *(str(Path(file).with_suffix(suffix)) for suffix in (".h", ".cc"))}
    return "".join(text_of(half) for half in sorted(halves) if (ROOT / half).is_file())


@functools.cache
def words_of_scopes() -> dict[str, set[str]]:
    """By class or namespace: the words of the files that have one of that name; by "" all."""
    found: dict[str, set[str]] = {"": set()}
    for file in files_with(*CPP, ".capnp"):
        if "_test." in file:
            continue
        text = text_of(file)
        found[""].update(re.findall(r"\w+", text))
        for name in SCOPE.findall(text):
            found.setdefault(name, set()).update(re.findall(r"\w+", both_halves(file)))
    found["djinn"] = found[""]
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_names_what_is_there(walk: str) -> None:
    known = words_of_scopes()
    text = text_of(walk)
    missing = []
    for quoted in QUOTED.findall(text):
        if "/" in quoted:
            if not (ROOT / quoted).exists():
                missing.append(f"{walk}: there is no {quoted}")
        elif NAME.fullmatch(quoted):
            *scopes, name = quoted.split("::")
            if name not in known.get(scopes[-1] if scopes else "", set()):
                missing.append(f"{walk}: the code has no {quoted}")
    for quoted, file in PLACED.findall(text):
        if NAME.fullmatch(quoted) and not set(quoted.split("::")) <= set(
            re.findall(r"\w+", both_halves(file))
        ):
            missing.append(f"{walk}: {file} has no {quoted}")
    expect_none(missing)


def test_there_are_walks() -> None:
    assert {"docs/ONE_TOKEN.md", "docs/ONE_OPEN.md", "docs/ONE_EVICTION.md"} <= set(WALKS)
