# SPDX-License-Identifier: Apache-2.0
"""Lines of the documents that are made by a program: no wider than those written by hand."""

import textwrap

COLUMNS_MAX = 120


def wrapped(lines: list[str]) -> str:
    """A line is a paragraph, an item of a list, or a row of a table, which stays as it is."""
    return "\n".join(line if line.startswith("|") else filled(line) for line in lines) + "\n"


def filled(line: str) -> str:
    return textwrap.fill(
        line,
        COLUMNS_MAX,
        subsequent_indent="  " if line.startswith("* ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
