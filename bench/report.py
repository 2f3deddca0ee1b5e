# SPDX-License-Identifier: Apache-2.0
"""Google Benchmark's options and report for what is measured in Python, so that tools/run_bench.py
runs it as the others."""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def entry(name: str, seconds: float, **counters: float) -> Entry:
    return {
        "run_name": name,
        "run_type": "iteration",
        "real_time": seconds * 1e6,
        "cpu_time": seconds * 1e6,
        "time_unit": "us",
        **counters,
    }


def seconds_of(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def report(benchmarks: dict[str, Callable[[], Iterable[Entry]]]) -> None:
    """Runs those that are asked for, and writes what they give. Each entry is a repetition."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--benchmark_filter", default=".")
    parser.add_argument("--benchmark_out", required=True)
    arguments = parser.parse_known_args()[0]
    entries: list[Entry] = []
    for name, benchmark in benchmarks.items():
        if re.search(arguments.benchmark_filter, name):
            entries += benchmark()
            print(entries[-1], flush=True)
    Path(arguments.benchmark_out).write_text(json.dumps({"benchmarks": entries}))
