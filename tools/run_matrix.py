# SPDX-License-Identifier: Apache-2.0
"""The matrix: every model of the zoo as a ghost, compared with itself on the CPU.

    ./dev matrix [NAME...]        those models, or all
    ./dev matrix --operators      PyTorch's operator samples instead: all of them
    ./dev matrix --side local     the comparison alone, without ghosts: all must pass

A run of all models writes docs/MODELS.md; every run writes build/matrix/matrix.json. Logs of the
processes are beside it. Exit code 1: fewer than PASSED_MIN of all models pass, or one of those that
were named does not.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "ghosts"))

import compare
import zoo
from compare import EQUAL, Result
from private_daemon import ROOT, THREADS, running

SCRATCH = ROOT / "build" / "matrix"
TABLE = ROOT / "docs" / "MODELS.md"
PASSED_MIN = 36
MODELS_MIN = 40
HEADER = (
    *("family", "model", "class", "attention", "ghost", "forward", "batch", "generate", "batch"),
    *("tier", "operators a step", "bytes a step"),
)
NOT_APPLICABLE, UNKNOWN, DIFFERS = "\N{EN DASH}", "?", "**no**"


def compared(name: str, side: compare.Side) -> Result:
    """On a daemon of its own, so that no model meets what another one left."""
    try:
        with running() as daemon:
            return compare.in_child(name, daemon, SCRATCH, side)
    except Exception as error:
        result = compare.read_result(name, SCRATCH / f"{name}.json")
        result.reasons.append(f"djinnd: {type(error).__name__}: {error}")
        return result


def run_models(names: list[str], side: compare.Side) -> list[Result]:
    results = []
    for name in names:
        start = time.monotonic()
        result = compared(name, side)
        results.append(result)
        verdict = "passed" if result.passed else "FAILED"
        print(f"{name:<14} {verdict} {time.monotonic() - start:6.1f} s", flush=True)
        for reason in result.reasons:
            print(f"    {reason}", flush=True)
    return sorted(results, key=lambda r: (r.family, r.name))


# --- docs/MODELS.md -------------------------------------------------------------------------------


def yes_or_no(verdict: str | None, applies: bool = True) -> str:
    if not applies:
        return NOT_APPLICABLE
    return {EQUAL: "yes", None: DIFFERS, "": DIFFERS}.get(verdict, DIFFERS)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def row(result: Result) -> list[str]:
    generates = zoo.entry(result.name).generates
    return [
        *(result.family, result.name, result.model, result.attention or UNKNOWN),
        yes_or_no(result.ghost),
        *(yes_or_no(result.forward.get(variant)) for variant in zoo.VARIANTS),
        *(yes_or_no(result.generate.get(variant), generates) for variant in zoo.VARIANTS),
        *(str(result.tier), number(result.operators_a_step), number(result.bytes_a_step)),
    ]


def line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def failures(results: list[Result]) -> list[str]:
    failed = [result for result in results if not result.passed]
    reasons = [f"* `{r.name}`: {escaped(reason)}" for r in failed for reason in r.reasons]
    return ["", "## What fails, and why", "", *reasons] if failed else []


def escaped(text: str) -> str:
    """On one line, and as code: a reason may hold what Markdown takes for markup."""
    return "`" + " ".join(text.split()).replace("`", "'").replace(str(ROOT) + "/", "") + "`"


def table(results: list[Result]) -> str:
    passed = sum(result.passed for result in results)
    lines = [
        "# Models",
        "",
        f"Made by `./dev matrix`: each model of tests/ghosts/zoo.py (tiny, random weights, float32,"
        f" {THREADS} threads) as a ghost and on the CPU, compared bit for bit; `generate` is"
        f" {zoo.NEW_TOKENS} greedy tokens, `batch` three rows of different lengths; a step is one"
        " token, or one forward pass of a model that does not generate.",
        "",
        f"{passed} of {len(results)} pass.",
        "",
        line(HEADER),
        line(["---"] * len(HEADER)),
        *(line(row(result)) for result in results),
        *failures(results),
    ]
    return "\n".join(lines) + "\n"


def write(results: list[Result], everything: bool, side: compare.Side) -> None:
    report = {
        "schema": "djinn.matrix.v1",
        "side": side,
        "items": [{**dataclasses.asdict(r), "passed": r.passed} for r in results],
    }
    (SCRATCH / "matrix.json").write_text(json.dumps(report, indent=1) + "\n")
    if everything and side == "ghost":
        TABLE.write_text(table(results))


def run_operators(side: str) -> int:
    """All samples of all operators; opinfo.py prints its own summary."""
    command = [sys.executable, str(ROOT / "tests" / "ghosts" / "opinfo.py"), "--samples", "all"]
    return subprocess.run([*command, "--side", side, "--scratch", str(SCRATCH)]).returncode


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev matrix")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(zoo.NAMES))
    parser.add_argument("--operators", action="store_true", help="operators instead of models")
    parser.add_argument("--side", choices=("ghost", "local"), default="ghost")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(zoo.NAMES))
    if unknown:
        parser.error(f"no model of the zoo: {', '.join(unknown)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if arguments.operators:
        return run_operators(arguments.side)
    assert len(zoo.NAMES) >= MODELS_MIN
    results = run_models(arguments.names or zoo.NAMES, arguments.side)
    write(results, everything=not arguments.names, side=arguments.side)
    passed = sum(result.passed for result in results)
    print(f"{passed} of {len(results)} pass; {SCRATCH.relative_to(ROOT)}/matrix.json")
    wanted = len(arguments.names) if arguments.names else PASSED_MIN
    return 0 if passed >= wanted else 1


if __name__ == "__main__":
    sys.exit(main())
