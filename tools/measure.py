# SPDX-License-Identifier: Apache-2.0
"""Prints how the C++ folders are built, as the table of CONTRIBUTING.md, section Measures.

    measure.py

rooms       a header with its .cc, or either alone; tests, benchmarks and what is for them are none
arrows      from one room to another of the same folder that it includes
lines       of the rooms' files
assertions  DJINN_ASSERT and static_assert, a thousand lines
longest     lines of the longest function that is defined outside of a class
"""

import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tree import ROOT, files

CPP = (".h", ".hpp", ".cc", ".cu", ".cuh")
TESTS = re.compile(r"_(test|bench|fuzz)\.cc$|_for_tests\.|^bench/|^tests/|^examples/|/testing/")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ASSERTION = re.compile(r"\b(?:DJINN_ASSERT|static_assert)\b")
RAW_STRING = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
# As clang-format leaves it: in the first column, like the brace that ends it.
DEFINITION = re.compile(r"^(?!//|namespace|class|struct|enum|union|extern|using|typedef)[A-Za-z\[]")
HEADER = ("folder", "rooms", "arrows", "lines", "assertions", "longest")


@dataclass
class Folder:
    rooms: set[str] = field(default_factory=set)
    arrows: set[tuple[str, str]] = field(default_factory=set)
    lines: int = 0
    assertions: int = 0
    longest: int = 0


def sources() -> list[str]:
    return [path for path in files() if path.endswith(CPP) and not TESTS.search(path)]


def room_of(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def functions(text: str) -> list[tuple[str, int]]:
    """The first line of each function that is defined outside of a class, and how many it has."""
    found = []
    lines = RAW_STRING.sub(lambda raw: "\n" * raw[0].count("\n"), text).splitlines()
    for number, line in enumerate(lines):
        if not DEFINITION.match(line):
            continue
        # Its head may go over several lines; that of a declaration ends with a semicolon.
        head = next((n for n in range(number, len(lines)) if re.search(r"[{;]$", lines[n])), number)
        whole = " ".join(lines[number : head + 1])
        if whole.endswith("{") and "(" in whole and not re.search(r"^[^(]* = ", whole):
            end = next((n for n in range(head, len(lines)) if lines[n].startswith("}")), head)
            found.append((line, end - number + 1))
    return found


def measured() -> dict[str, Folder]:
    folders: dict[str, Folder] = defaultdict(Folder)
    for path in sources():
        text = (ROOT / path).read_text()
        room, name = room_of(path), str(PurePosixPath(path).parent)
        folder = folders[name]
        folder.rooms.add(room)
        folder.lines += text.count("\n")
        folder.assertions += len(ASSERTION.findall(text))
        folder.longest = max([folder.longest, *(length for _, length in functions(text))])
        for included in INCLUDE.findall(text):
            other = room_of(included)
            if str(PurePosixPath(other).parent) == name and other != room:
                folder.arrows.add((room, other))
    return folders


def row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    print(row(HEADER))
    print(row(["---", *["---:"] * (len(HEADER) - 1)]))
    for name, one in sorted(measured().items()):
        density = one.assertions * 1000 / one.lines
        counts = (len(one.rooms), len(one.arrows), one.lines)
        print(row([name, *map(str, counts), f"{density:.1f}", str(one.longest)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
