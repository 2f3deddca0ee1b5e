#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual's pages, man/*.scd, as troff: make_manual.py DIRECTORY.

scdoc writes paragraph macros that troff skips, beside headings and indents; they are left out, so
that `mandoc -Tlint` has nothing to say. @OPERATORS@, @DTYPES@ and @METRICS@ stand for what the code
has (kernel/srg/allowed.cc, kernel/base/dtype.cc, daemon/djinnd/metrics/metrics_text.cc). In a
literal block, too, it takes a backslash for the begin of an escape: there it is doubled, so an
example stands in the source as people read it. A page that documents several functions gets a page
beside it for each of them, which is one line that points to it: `man djinn_close` works.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAN = ROOT / "man"
# A paragraph that begins or ends at one of these is empty.
AROUND = (".SH", ".SS", ".RS", ".RE", ".P", ".TH")


def block(names: list[str]) -> str:
    return textwrap.fill(" ".join(names), 72, break_long_words=False, break_on_hyphens=False)


def operators() -> str:
    table = (ROOT / "kernel/srg/allowed.cc").read_text().split("kAllowed", 1)[1].split("});", 1)[0]
    return block(re.findall(r'"(\w+::[\w.]+)"', table))


def dtypes() -> str:
    names = re.findall(r'\{DType::k\w+, "(\w+)"', (ROOT / "kernel/base/dtype.cc").read_text())
    return block([name for name in names if name != "invalid"])


def metrics() -> str:
    code = (ROOT / "daemon/djinnd/metrics/metrics_text.cc").read_text()
    entries = []
    for name, parts in re.findall(r'"(djinn_\w+)",\s*((?:"[^"]*"\s*)+)', code):
        text = textwrap.fill("".join(re.findall(r'"([^"]*)"', parts)), 68).replace("\n", "\n\t")
        entries.append(f"*{name}*\n\t{text}".replace("_", "\\_"))
    return "\n\n".join(entries)


def with_tables(source: str) -> str:
    for name, table in (("OPERATORS", operators), ("DTYPES", dtypes), ("METRICS", metrics)):
        source = source.replace(f"@{name}@", table())
    return source


def with_literal_backslashes(source: str) -> str:
    """Every other part between fences is a block of code."""
    parts = source.split("\n```")
    parts[1::2] = [part.replace("\\", "\\\\") for part in parts[1::2]]
    return "\n```".join(parts)


def without_empty_paragraphs(troff: str) -> str:
    lines = troff.splitlines()
    kept: list[str] = []
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ".SH"
        before = kept[-1] if kept else ".SH"
        if line == ".P" and (
            after.startswith(AROUND) or before.startswith((".SH", ".SS", ".P", ".RS", ".TH"))
        ):
            continue
        kept.append(line)
    return "\n".join(kept) + "\n"


def further_names(source: str) -> list[str]:
    """Of "a, b, c - what they are": b and c."""
    section = source.split("\n# NAME\n", 1)[1].split("\n# ", 1)[0]
    return " ".join(section.split()).split(" - ", 1)[0].split(", ")[1:]


def main() -> None:
    (out,) = sys.argv[1:]
    for source in sorted(MAN.glob("*.scd")):
        text = with_tables(source.read_text())
        made = subprocess.run(
            ["scdoc"],
            input=with_literal_backslashes(text),
            capture_output=True,
            text=True,
            check=True,
        )
        (Path(out) / source.stem).write_text(without_empty_paragraphs(made.stdout))
        number = source.stem.rpartition(".")[2]
        for name in further_names(text):
            (Path(out) / f"{name}.{number}").write_text(f".so man{number}/{source.stem}\n")


if __name__ == "__main__":
    main()
