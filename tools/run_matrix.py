# SPDX-License-Identifier: Apache-2.0
"""The matrix: every model of the zoo as a ghost, compared with itself on the CPU.

    ./dev matrix [NAME...]        those models, or all
    ./dev matrix --missing        those that docs/MODELS.md has no row of
    ./dev matrix --exports        of rows whose loop runs in djinnd, whether they can be exported,
                                  and say the same then
    ./dev matrix --costs          of rows that are there, what a step costs alone: counted anew
    ./dev matrix --operators      PyTorch's operator samples instead: all; writes docs/OPERATORS.md
    ./dev matrix --side local     the comparison alone, without ghosts: all must pass
    ./dev matrix --captures       tests/data/captures instead: the programs of those that run their
                                  loop in djinnd, and what the passes of fast numerics make of them;
                                  and tests/data/forwards: whole forward passes of some others, and
                                  steps of training

Each model that was run becomes a row of docs/models.json at once, with the commit and the day; the
other rows stay. What a step costs has a commit and a day of its own (`costs`), and is not shown
without them: earlier counts had what is sent once in them. docs/MODELS.md is made of the rows. Logs
of the processes are in build/matrix. Exit code 1: one of the models that were run neither passes
nor is refused by name.
"""

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "ghosts"))

import captures
import children
import compare
import documents
import exports
import zoo
from compare import EQUAL, REFUSED, Result
from private_daemon import BIN, ROOT, running

SCRATCH = ROOT / "build" / "matrix"
TABLE = ROOT / "docs" / "MODELS.md"
RECORD = ROOT / "docs" / "models.json"
MODELS_MIN = 150
EXPORTS_LIMIT_S = 1200.0
THREADS = 1  # tiny models have nothing to share out
HEADER = (
    *("family", "model", "class", "loaded by", "attention"),
    *("forward", "batch", "generate", "batch"),
    *("bf16 forward", "batch", "generate", "batch", "prompts"),
    *("tier", "operators a step", "bytes a step", "counted", "commit", "day"),
)
NO_LOOP = "its generate() is one forward pass"
NOT_APPLICABLE, UNKNOWN, DIFFERS = "\N{EN DASH}", "?", "**no**"
CELLS = {EQUAL: "yes", compare.NOT_HERE: "CPU: no", compare.DRAWS: "draws", REFUSED: "refused"}
ALL = frozenset(one.name for one in dataclasses.fields(Result)) - {"name"}
COSTS = frozenset(("tier", "why", "operators_a_step", "bytes_a_step"))
EXPORT = "export"  # of a row: why it is not exported; empty where it is
Record = dict[str, dict[str, Any]]  # of a model's name: its Result, commit and day


def compared(name: str, side: compare.Side, costs_alone: bool) -> Result:
    """On a daemon of its own, so that no model meets what another one left."""
    try:
        with running(threads=THREADS) as daemon:
            return compare.in_fork(name, daemon, SCRATCH, side, costs_alone)
    except Exception as error:
        result = compare.read_result(name, SCRATCH / f"{name}.json")
        result.reasons.append(f"djinnd: {type(error).__name__}: {error}")
        return result


def run_models(names: list[str], side: compare.Side, costs_alone: bool) -> list[Result]:
    results = []
    for name in names:
        start = time.monotonic()
        result = compared(name, side, costs_alone)
        results.append(result)
        verdict = "passed" if result.passed else REFUSED if result.refused else "FAILED"
        print(f"{name:<14} {verdict} {time.monotonic() - start:6.1f} s", flush=True)
        for reason in result.reasons:
            print(f"    {reason}", flush=True)
        if side == "ghost" and (result.passed or not costs_alone):
            keep(result, COSTS if costs_alone else ALL)
    return results


# --- docs/models.json and docs/MODELS.md ----------------------------------------------------------


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """That of the tree; with a plus, if what is compiled or run differs from it."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short=9", "HEAD") + ("+" if changed else "")


def recorded() -> Record:
    if not RECORD.exists():
        return {}
    rows: Record = json.loads(RECORD.read_text())["rows"]
    return {name: row for name, row in rows.items() if name in zoo.NAMES}


def keep(result: Result, what: frozenset[str]) -> None:
    """All of a row, or what a step costs."""
    rows = recorded()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = {"commit": commit(), "day": day}
    found = {name: value for name, value in dataclasses.asdict(result).items() if name in what}
    if what == ALL:
        found["reasons"] = [reason.replace(f"{ROOT}/", "") for reason in result.reasons]
        kept = {key: one for key, one in rows.get(result.name, {}).items() if key == EXPORT}
        rows[result.name] = found | made | kept
    else:
        rows[result.name] |= found
    if result.operators_a_step is not None:
        rows[result.name]["costs"] = made
    write(rows)


def export_models(names: list[str]) -> int:
    """Writes into their rows why they are not exported; nothing where they are. By one process:
    each takes a second."""
    report = SCRATCH / "exports.json"
    report.unlink(missing_ok=True)
    with running(threads=THREADS) as daemon:
        arguments = (exports.RECORD_THEM, str(report), daemon.host, *names)
        log = SCRATCH / "exports.log"
        ended = children.python(log, EXPORTS_LIMIT_S, "exports.py", *arguments)
    found, wrong = json.loads(report.read_text()) if report.exists() else ({}, {})
    rows = recorded()
    for name, why in found.items():
        print(f"{name:<14} {why or 'exported'}", flush=True)
        rows[name][EXPORT] = why
    write(rows)
    for name, why in wrong.items():
        print(f"{name:<14} FAILED: {why}", flush=True)
    if ended:
        print(f"{ended}: {log}", flush=True)
    return 1 if ended or wrong else 0


def write(rows: Record) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)]
    head = '{"schema": "djinn.matrix.v2", "rows": {'
    RECORD.write_text(head + "\n" + ",\n".join(lines) + "\n}}\n")
    TABLE.write_text(table(rows))


def result_of(name: str, row: dict[str, Any]) -> Result:
    known = {one.name for one in dataclasses.fields(Result)}
    return Result(name, **{k: v for k, v in row.items() if k in known})


def cell(result: Result, verdict: str | None, applies: bool = True) -> str:
    if not applies:
        return NOT_APPLICABLE
    if not verdict:
        return CELLS[REFUSED] if result.refused else DIFFERS
    return next((said for begin, said in CELLS.items() if verdict.startswith(begin)), DIFFERS)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def cells_of(result: Result, row: dict[str, Any]) -> list[str]:
    entry = zoo.entry(result.name)
    both = []
    for dtype in zoo.DTYPES:
        names = [zoo.name_of(dtype, variant) for variant in zoo.VARIANTS]
        both += [cell(result, result.forward.get(name)) for name in names]
        both += [cell(result, result.generate.get(name), entry.generates) for name in names]
    return [
        *(result.family, result.name, result.model, entry.auto, result.attention or UNKNOWN),
        *(*both, prompts(result, entry)),
        *(str(result.tier), *costs(result, row), row["commit"], row["day"]),
    ]


def costs(result: Result, row: dict[str, Any]) -> tuple[str, str, str]:
    """Not what was counted before costs had a commit of their own."""
    if "costs" not in row:
        return UNKNOWN, UNKNOWN, UNKNOWN
    made = row["costs"]
    counts = (number(result.operators_a_step), number(result.bytes_a_step))
    return *counts, f"{made['commit']} {made['day']}"


def prompts(result: Result, entry: zoo.Entry) -> str:
    """All lengths in both dtypes, logits and tokens."""
    if entry.variants == zoo.VARIANTS:
        return NOT_APPLICABLE
    names = [zoo.name_of(dtype, variant) for dtype in zoo.DTYPES for variant in zoo.PROMPTS]
    found = {cell(result, kind.get(n)) for n in names for kind in (result.forward, result.generate)}
    return found.pop() if len(found) == 1 else DIFFERS


def line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def reasons(title: str, results: list[Result]) -> list[str]:
    said = [f"* `{r.name}`: {escaped(reason)}" for r in results for reason in r.reasons]
    return ["", f"## {title}", "", *said] if said else []


def tiers(results: list[Result]) -> list[str]:
    """Of models that generate: how many run their loop in djinnd, and why the others do not."""
    generating = [result for result in results if zoo.entry(result.name).generates]
    lower = [result for result in generating if result.tier < 2]
    if not lower:
        return []
    count = f"{len(generating) - len(lower)} of {len(generating)} models that generate do."
    said = [f"* `{one.name}`: tier {one.tier}, {escaped(one.why or NO_LOOP)}" for one in lower]
    title = "## What does not run its loop over tokens in djinnd, and why"
    return ["", title, "", count, "", *said]


def not_exported(rows: Record) -> list[str]:
    """Of the models whose loop runs in djinnd."""
    known = {name: row[EXPORT] for name, row in rows.items() if EXPORT in row}
    if not known:
        return []
    refused = {name: why for name, why in sorted(known.items()) if why}
    count = (
        f"{len(known) - len(refused)} of the {len(known)} models whose loop runs in djinnd can be"
        " exported, and give the same greedy tokens then, in float32, without Python. The others"
        " are refused with these words; djinnd generates with them as ghosts."
    )
    said = [f"* `{name}`: {escaped(why)}" for name, why in refused.items()]
    return ["", "## What is not exported, and why", "", count, "", *said]


def escaped(text: str) -> str:
    """On one line, and as code: a reason may hold what Markdown takes for markup."""
    return "`" + " ".join(text.split()).replace("`", "'").replace(str(ROOT) + "/", "") + "`"


def table(rows: Record) -> str:
    results = sorted(
        (result_of(name, row) for name, row in rows.items()), key=lambda r: (r.family, r.name)
    )
    passed = sum(result.passed for result in results)
    drawn = sum(compare.DRAWS in result.forward.values() for result in results)
    refused = [result for result in results if result.refused]
    failed = [result for result in results if not result.passed and not result.refused]
    lines = [
        "# Models",
        "",
        "Made by `./dev matrix`: each model of tests/ghosts/zoo.py (tiny, random weights,"
        f" transformers' default options, one thread) as a ghost and on the CPU, in float32"
        " and in bfloat16, compared bit for bit: outputs of a forward pass, and"
        f" {zoo.NEW_TOKENS} greedy tokens of `generate`. `batch` is three rows, `prompts` one of"
        f" {', '.join(zoo.PROMPTS)} tokens each. A step is one token, or one forward pass of a"
        " model that generates none by one, in float32: operators that this process records, and"
        " all bytes that cross to djinnd and back, as djinnd counts them, once the calls before"
        " have sent what is sent once. `counted` says when; `?`: not yet. `CPU: no`: PyTorch on the"
        " CPU refuses it, too. `draws`: the"
        " result is another for another seed on the CPU, too, and djinnd draws with a generator of"
        " its own; names, dtypes and shapes are equal.",
        "",
        f"{len(results)} models: {passed} pass ({drawn} of them draw), {len(refused)} are refused"
        f" by name, {len(failed)} fail.",
        "",
        line(HEADER),
        line(["---"] * len(HEADER)),
        *(line(cells_of(result, rows[result.name])) for result in results),
        *tiers(results),
        *not_exported(rows),
        *reasons("What is refused, and why", refused),
        *reasons("What fails, and why", failed),
    ]
    return documents.wrapped(lines)


def run_operators(side: str) -> int:
    """All samples of all operators; opinfo.py prints its own summary, and writes the table."""
    command = [sys.executable, str(ROOT / "tests" / "ghosts" / "opinfo.py"), "--samples", "all"]
    command += ["--table"] if side == "ghost" else []
    return subprocess.run([*command, "--side", side, "--scratch", str(SCRATCH)]).returncode


def write_captures(names: list[str]) -> int:
    """Of an entry that has no such programs any more, what was written before goes."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    captures.CAPTURES.mkdir(parents=True, exist_ok=True)
    captures.FORWARD_PASSES.mkdir(parents=True, exist_ok=True)
    with running(threads=THREADS) as daemon:
        for name in captures.names():
            if not names or name in names:
                why_not = captures.written(name, daemon, SCRATCH)
                print(f"{name:<14} {why_not or 'written'}", flush=True)
        for name in captures.FORWARDS:
            if not names or name in names:
                why_not = captures.forward_written(name, daemon, SCRATCH)
                print(f"{name:<14} {why_not or 'written'}", flush=True)
        for name in captures.TRAININGS:
            if not names or name in names:
                why_not = captures.training_written(name, daemon, SCRATCH)
                print(f"{name:<14} training: {why_not or 'written'}", flush=True)
    environment = {**os.environ, "DJINN_WRITE_PASSES": "1"}
    return subprocess.run([BIN / "rewrite-test", "--gtest_brief=1"], env=environment).returncode


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev matrix")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tests/ghosts/zoo.py")
    parser.add_argument("--missing", action="store_true", help="those that have no row yet")
    parser.add_argument("--exports", action="store_true", help="what can be exported alone")
    parser.add_argument("--costs", action="store_true", help="what a step costs alone")
    parser.add_argument("--operators", action="store_true", help="operators instead of models")
    parser.add_argument("--captures", action="store_true", help="programs, as text")
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
    if arguments.captures:
        return write_captures(arguments.names)
    assert len(zoo.NAMES) >= MODELS_MIN
    names = arguments.names or zoo.NAMES
    if arguments.missing:
        names = [name for name in names if name not in recorded()]
    if arguments.exports:
        in_djinnd = {name for name, row in recorded().items() if row["tier"] == 2}
        return export_models([name for name in names if name in in_djinnd])
    if arguments.costs:
        names = [name for name in names if name in recorded()]
    results = run_models(names, arguments.side, arguments.costs)
    passed = sum(result.passed for result in results)
    refused = sum(result.refused for result in results)
    print(f"{passed} of {len(results)} pass, {refused} are refused by name")
    return 0 if passed + refused == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
