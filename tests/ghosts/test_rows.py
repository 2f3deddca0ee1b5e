# SPDX-License-Identifier: Apache-2.0
"""The row contract of fast numerics: what a row gets depends on its own tokens, the weights and
the level of instructions, and neither on how many threads compute nor on what is beside it."""

import json
from collections.abc import Callable
from pathlib import Path

import children
import pytest

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 240.0
Reports = Callable[[int, str], dict[str, list[str]]]


@pytest.fixture
def report_of(tmp_path: Path) -> Reports:
    def report_of(threads: int, isa: str) -> dict[str, list[str]]:
        into = tmp_path / f"{isa}-{threads}.json"
        options = ["--isa", isa] if isa else []
        said = children.python(
            tmp_path / "log", LIMIT_S, "rows.py", str(into), str(tmp_path), str(threads), *options
        )
        assert said is None
        found: dict[str, list[str]] = json.loads(into.read_text())
        return found

    return report_of


def expect_rows_alike(report_of: Reports, isa: str, threads: tuple[int, ...]) -> None:
    expected = report_of(threads[0], isa)
    for name, digests in expected.items():
        assert digests == expected[name.replace("among others", "alone")], name
    for other in threads[1:]:
        assert report_of(other, isa) == expected, f"{other} threads"


@pytest.mark.ci
def test_a_row_is_the_same_alone_and_among_others_with_one_thread_and_with_three(
    report_of: Reports,
) -> None:
    expect_rows_alike(report_of, "", (1, 3))


@pytest.mark.full
@pytest.mark.parametrize("isa", ["base", "avx2", "avx512", "avx512-bf16", "amx"])
def test_so_it_is_at_each_level_of_instructions(report_of: Reports, isa: str) -> None:
    expect_rows_alike(report_of, isa, (1, 2, 3))
