# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark programs; prints a table; writes build/bench/summary.json, and all
medians to measured.json beside it, for bench/plot.py.

    run_bench.py [TEXT]
    run_bench.py peers[/NAME]

The figures and their bars are in bench/bars.json (bench/README.md says how to read it). TEXT runs
the benchmarks whose name, or whose program's name, contains it, and judges the figures that they
give. Benchmarks without a figure are listed below the table with their median time. Peers, which
are other programs, are measured where they are asked for alone (bench/peers).

Exits with 1 where a figure does not hold or was not measured, and where a benchmark failed.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build" / "release" / "bin"
SCRIPTS = ROOT / "bench"  # of Python, with the same options and report
RESULTS = ROOT / "build" / "bench"
BARS = ROOT / "bench" / "bars.json"
REPETITIONS = 5
PEERS = "peers"
PROGRAM_TIMEOUT_S = 7200  # the row contract takes longest

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
HOLDS = {
    "below": lambda value, bar: value < bar,
    "at_most": lambda value, bar: value <= bar,
    "at_least": lambda value, bar: value >= bar,
}


@dataclass(frozen=True)
class Figure:
    name: str
    value: float | None  # None: not measured
    unit: str
    bar: str
    holds: bool


# The medians of one benchmark, by field: times in seconds, counters as they are.
Medians = dict[str, float]


def medians_of(report: dict) -> dict[str, Medians]:
    runs: dict[str, list[dict]] = {}
    for run in report["benchmarks"]:
        if run["run_type"] == "iteration" and not run.get("error_occurred"):
            runs.setdefault(name_of(run), []).append(run)
    return {name: medians_of_runs(same) for name, same in runs.items()}


def errors_of(report: dict) -> list[str]:
    """What benchmarks said that gave up, each once."""
    failed = [run for run in report["benchmarks"] if run.get("error_occurred")]
    return sorted({f"{name_of(run)}: {run.get('error_message', 'it failed')}" for run in failed})


def name_of(run: dict) -> str:
    """Without the suffixes that Google Benchmark adds for a benchmark's settings."""
    settings = r"/(repeats:\d+|iterations:\d+|min_time:[\d.]+|real_time|manual_time|process_time)"
    return re.sub(settings, "", run["run_name"])


def medians_of_runs(runs: list[dict]) -> Medians:
    numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
    medians = {key: statistics.median(run[key] for run in runs) for key in numbers}
    for key in ("real_time", "cpu_time"):
        medians[key] *= SECONDS[runs[0]["time_unit"]]
    return medians


def run_program(program: Path, text: str) -> dict:
    """The program's report: empty where it has no benchmark of that name."""
    report = RESULTS / f"{program.name}.json"
    report.unlink(missing_ok=True)
    wanted = text if text and text not in program.name else "."
    command = [
        *([sys.executable] if program.suffix == ".py" else []),
        str(program),
        f"--benchmark_filter={wanted}",
        f"--benchmark_out={report}",
        "--benchmark_out_format=json",
        f"--benchmark_repetitions={REPETITIONS}",
        "--benchmark_enable_random_interleaving=true",
    ]
    print("+ " + " ".join(command), flush=True)
    # Threads of a pool that spin as long here as in a worker.
    environment = {
        **os.environ,
        "DJINN_BUILD_DIR": str(PROGRAMS.parent),
        "GOMP_SPINCOUNT": "5000",
        "OMP_DYNAMIC": "false",
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=PROGRAM_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} ended with exit code {done.returncode}")
    written = report.read_text() if report.exists() else ""
    return json.loads(written) if written else {"benchmarks": []}


def programs_for(text: str) -> list[Path]:
    if text.startswith(PEERS):
        return [SCRIPTS / PEERS / "peers_bench.py"]
    return [*sorted(PROGRAMS.glob("*-bench")), *sorted(SCRIPTS.glob("*_bench.py"))]


def judged(bars: list[dict], measured: dict[str, Medians], text: str) -> list[dict]:
    """A benchmark that is named like TEXT, and was not measured, is judged all the same."""
    meant = [bar for bar in bars if bar["benchmark"].startswith(PEERS) == text.startswith(PEERS)]
    return [bar for bar in meant if text in bar["benchmark"] or bar["benchmark"] in measured]


def figure_of(bar: dict, measured: dict[str, Medians]) -> Figure:
    kind = next(kind for kind in HOLDS if kind in bar)
    limit = f"{kind.replace('_', ' ')} {bar[kind]:g}"
    value = measured.get(bar["benchmark"], {}).get(bar["field"])
    if value is not None and bar["field"] in ("real_time", "cpu_time"):
        value /= SECONDS[bar["unit"]]
    holds = value is not None and HOLDS[kind](value, bar[kind])
    return Figure(bar["name"], value, bar["unit"], limit, holds)


def print_table(figures: list[Figure]) -> None:
    row = "{:<66} {:>10} {:<10} {:<14} {}"
    print(row.format("FIGURE", "VALUE", "UNIT", "BAR", "HOLDS"))
    for figure in figures:
        value = "-" if figure.value is None else f"{figure.value:.4g}"
        holds = "yes" if figure.holds else "not measured" if figure.value is None else "NO"
        print(row.format(figure.name, value, figure.unit, figure.bar, holds))


def print_others(bars: list[dict], measured: dict[str, Medians]) -> None:
    named = {bar["benchmark"] for bar in bars}
    for name in sorted(set(measured) - named):
        print(f"{name:<66} {measured[name]['real_time'] * 1e6:>10.4g} us")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("text", nargs="?", default="", metavar="TEXT")
    text = parser.parse_args().text
    RESULTS.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Medians] = {}
    failures = []
    for program in programs_for(text):
        try:
            report = run_program(program, text)
            measured |= medians_of(report)
            failures += errors_of(report)
        except (RuntimeError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            failures.append(f"{program.name}: {error}")
    (RESULTS / "measured.json").write_text(json.dumps(measured, indent=2) + "\n")
    bars = json.loads(BARS.read_text())
    figures = [figure_of(bar, measured) for bar in judged(bars, measured, text)]
    (RESULTS / "summary.json").write_text(
        json.dumps([asdict(figure) for figure in figures], indent=2) + "\n"
    )
    print_table(figures)
    print_others(bars, measured)
    for failure in failures:
        print(f"FAILED {failure}")
    if text and not measured and not failures:
        failures.append(f"no benchmark has a name with {text!r} in it")
        print(failures[-1])
    holding = sum(figure.holds for figure in figures)
    print(f"{holding} of {len(figures)} figures hold")
    return 1 if failures or holding < len(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
