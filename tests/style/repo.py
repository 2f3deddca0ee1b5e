# SPDX-License-Identifier: Apache-2.0
"""The repository as the style tests see it: its files, its folders, the table of folders."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import pytest
from tree import ROOT, files

HEADERS = (".h", ".hpp", ".cuh")
CPP = (*HEADERS, ".cc", ".cu")
CODE = (*CPP, ".c", ".py", ".capnp", ".sh", ".cmake")
BUILD_DIR = ROOT / "build" / "release"
# "uses" of a folder that stands above all others: it may include what it likes.
ANYTHING = "anything"
NOTHING = "\N{EN DASH}"


def files_with(*suffixes: str) -> list[str]:
    return [f for f in files() if f.endswith(suffixes)]


def text_of(path: str) -> str:
    return (ROOT / path).read_text(errors="replace")


@dataclass(frozen=True)
class Folder:
    """A row of the table in docs/ARCHITECTURE.md."""

    path: str  # from the root, as in kernel/base
    uses: frozenset[str] | None  # paths of folders; None: anything


def short_names(paths: list[str]) -> dict[str, str]:
    """A folder is called by its path, or by the last part of it."""
    return {PurePosixPath(p).name: p for p in paths} | {p: p for p in paths}


def parse_uses(text: str, names: dict[str, str]) -> frozenset[str] | None:
    if text.strip() == ANYTHING:
        return None
    words = [word.strip(" `") for word in text.split(",")]
    return frozenset(names.get(word, word) for word in words if word not in ("", NOTHING))


@cache
def folders() -> dict[str, Folder]:
    row = re.compile(r"^\| \[([a-z/-]+)\]\([^)]*\) \|.*\| ([^|]+) \|$", re.MULTILINE)
    rows = row.findall(text_of("docs/ARCHITECTURE.md"))
    names = short_names([path for path, _ in rows])
    return {path: Folder(path, parse_uses(uses, names)) for path, uses in rows}


def folder_of(path: str) -> str | None:
    """The row that a file belongs to: its own folder's, or the nearest one above."""
    for parent in PurePosixPath(path).parents:
        if str(parent) in folders():
            return str(parent)
    return None


def expect_none(found: list[str], rule: str = "") -> None:
    """Fails with every place in full: whoever reads it wants to go there."""
    if found:
        pytest.fail("\n".join([rule, *found]).strip(), pytrace=False)
