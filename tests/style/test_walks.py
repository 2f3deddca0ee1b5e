# SPDX-License-Identifier: Apache-2.0
"""What docs/ONE_*.md walk through is there: files, and in the code the names beside them."""

import re

import pytest
from repo import CPP, ROOT, expect_none, files, files_with, text_of

WALKS = [file for file in files() if re.fullmatch(r"docs/ONE_\w+\.md", file)]
QUOTED = re.compile(r"`([^`\s]+)`")
NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")


def words_of_the_code() -> set[str]:
    sources = [file for file in files_with(*CPP, ".capnp") if "_test." not in file]
    return {word for file in sources for word in re.findall(r"\w+", text_of(file))}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_names_what_is_there(walk: str) -> None:
    known = words_of_the_code()
    missing = []
    for quoted in QUOTED.findall(text_of(walk)):
        if "/" in quoted:
            if not (ROOT / quoted).exists():
                missing.append(f"{walk}: there is no {quoted}")
        elif NAME.fullmatch(quoted) and not set(quoted.split("::")) <= known:
            missing.append(f"{walk}: the code has no {quoted}")
    expect_none(missing)


def test_there_are_walks() -> None:
    assert {"docs/ONE_TOKEN.md", "docs/ONE_OPEN.md", "docs/ONE_EVICTION.md"} <= set(WALKS)
