# SPDX-License-Identifier: Apache-2.0
"""Each stumble of the three trials has one place: a test here, or a row of README.md that says
which test of another folder stands for it, or why nothing does."""

import re
from collections import Counter
from pathlib import Path

from private_daemon import ROOT
from trial import HERE

STUMBLES = [
    f"{letter}{n}" for letter, last in (("a", 29), ("b", 22), ("c", 11)) for n in range(1, last + 1)
]
TRIALS = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
ROW = re.compile(r"^\| ([ABC]\d+) \| .* \| (.*) \|$", re.MULTILINE)
ROWS = ROW.findall((HERE / "README.md").read_text())


def numbers_of_trials() -> list[str]:
    text = "\n".join(path.read_text() for path in TRIALS)
    names = re.findall(r'\bdef test_(\w+)|\bid="([\w-]+)"', text)
    names += [(path.stem, "") for path in HERE.glob("administrator/*.session")]
    return [n for name in names for n in re.findall(r"(?:^|[_-])([abc]\d+)(?=[_-])", "".join(name))]


def test_each_stumble_has_one_place() -> None:
    found = Counter(numbers_of_trials() + [number.lower() for number, _ in ROWS])
    assert found == Counter(STUMBLES)


def test_a_place_in_another_folder_is_there() -> None:
    """`FILE: NAME`, of a test, a case or a check."""
    named = [place for _, text in ROWS for place in re.findall(r"`([\w./-]+): ([^`]+)`", text)]
    assert len(named) > 10
    for file, name in named:
        assert name in (ROOT / file).read_text(), f"{file} has no {name}"
