# SPDX-License-Identifier: Apache-2.0
"""Google Benchmark's options and report for what is measured in Python, so that tools/run_bench.py
runs it as the others."""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

PAIRS, SECONDS = 25, 1.0  # of a short and a long generation, until either is reached
SHORT, LONG = 8, 40  # tokens of two generations: their difference is the loop alone


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


def token_seconds_of(generate: Callable[[int], Any]) -> float:
    """A difference of medians: one of single runs is noise where a token takes microseconds."""
    short: list[float] = []
    long: list[float] = []
    while not long or (len(long) < PAIRS and sum(long) < SECONDS):
        short.append(seconds_of(lambda: generate(SHORT)))
        long.append(seconds_of(lambda: generate(LONG)))
    return (statistics.median(long) - statistics.median(short)) / (LONG - SHORT)


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
