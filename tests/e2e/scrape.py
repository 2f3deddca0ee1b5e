# SPDX-License-Identifier: Apache-2.0
"""A scrape of djinnd's metrics, as Prometheus makes it, and promtool, which judges it."""

import http.client
import os
import re
import shutil
from pathlib import Path

import pytest
from private_daemon import DEADLINE_S, ROOT

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def ask(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Scrape:
    """The series of one moment, and their values."""

    def __init__(self, address: str) -> None:
        status, self.text = ask(address, "/metrics")
        assert status == 200, self.text
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for line in self.text.splitlines():
            if not line.startswith("#"):
                found = SERIES.match(line)
                assert found, line
                labels = frozenset(LABEL.findall(found[2] or ""))
                self.values[found[1], labels] = float(found[3])

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels; there must be one."""
        wanted = set(labels.items())
        found = [v for (n, has), v in self.values.items() if n == name and wanted <= has]
        assert found, f"no series {name} with {labels}"
        return sum(found)

    def counters(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Those that must never go down."""
        ends = ("_total", "_bucket", "_count", "_sum")
        return {key: value for key, value in self.values.items() if key[0].endswith(ends)}


def promtool() -> str:
    """Its path: installed, or where `./dev test` unpacks it."""
    found = shutil.which("promtool") or str(ROOT / "build/tools/promtool")
    if not os.access(found, os.X_OK):
        pytest.skip("promtool is absent (./dev test unpacks it from Debian's prometheus)")
    return found


def metric_names(path: Path) -> set[str]:
    return set(re.findall(r"\bdjinn_\w+", path.read_text()))
