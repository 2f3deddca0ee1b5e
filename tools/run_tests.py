# SPDX-License-Identifier: Apache-2.0
"""Runs all tests of one tier and closes with what failed, and one line: `N passed, N failed, ...`.

    run_tests.py [quick|full|TEXT]

What runs:
* pytest: tests/style, then the other folders of tests/, a folder of many files in shares, and some
  of tests/e2e again, through djinn-reach and djinn-gate, by its standard input and by TLS;
* every test that CMake knows in build/release and build/asan, in the full tier also in build/tsan,
  in the default one the worker's in build/tsan-unity (a GoogleTest program each, or a plain program
  that counts as one test).
They are one queue, of which one more run at a time than there are cores: folders wait for half of
their time. Its order: programs with the property RUN_SERIAL, which run one at a time and each with
about a core for itself (see job_queue.py); tests/style; the folders of FIRST, then those of most
files; the programs of LONG, those with a sanitizer, then the others, of which most take seconds.

Tiers: a GoogleTest whose name begins with `ci_` or `full_`, a CTest test with the label `ci` or
`full`, and a pytest test with that mark are left out of `quick`; `full` ones of the default too.
TEXT runs the tests of all tiers whose name, or whose program's name, contains it; where it names a
group (groups_of_tests.py), those that contain one of the group's texts.
Of GoogleTests whose name begins with `once_` or `ci_once_`, what they test is no matter of memory
or threads: with a sanitizer they run in the full tier alone.

Nothing is silently absent: a program that is missing, crashes, times out, writes no report, or
fails although its report names no failure, counts as one failed test.

A test whose own assertion failed is run once more when all others have ended. One that then passes
is unsteady: it is counted, and told with its failure, as one that has to be mended. More of them
than UNSTEADY_AT_MOST, and each that fails again, end the run with 1. What a sanitizer reports, a
crash and a timeout have no second try.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from groups_of_tests import texts_of
from job_queue import Job, run_jobs

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test"
STYLE = ROOT / "tests" / "style"
PRESETS = ("release", "asan")
PRESETS_MORE = {"quick": (), "default": ("tsan-unity",), "full": ("tsan",)}
IN_TSAN_UNITY = "worker"  # the program of many threads
TIERS_LEFT_OUT = {"quick": ("ci", "full"), "default": ("full",), "full": ()}
NOT_SANITIZED = ("once", "ci_once")  # but in the full tier
PROGRAM_TIMEOUT_S = 900
PYTEST_TIMEOUT_S = 7200  # the full tier compiles all packages twice
RUNNING: set[int] = set()  # process groups
SAYING = threading.Lock()
SKIP_EXIT_CODE = 77  # of a plain program, as in Automake
TAIL_LINES = 60
AGAIN = "-again"  # ends the name of a second try
UNSTEADY_AT_MOST = 2
CORES = len(os.sched_getaffinity(0))
FILES_OF_A_SHARE = 20
# These run a second time with djinnd as if it were on another machine (tests/e2e/README.md).
REMOTE = {
    "stdio": ("test_runs.py", "test_encoder.py", "test_byte_model.py"),
    "tls": ("test_runs.py",),
}
REMOTE_FOLDERS = ("device", "ghosts")  # and these whole, in the full tier
FIRST = ("ghosts", "packaging")  # few files of minutes each: begun last, they would end last
LONG = ("djinnd-simulation", "cuda-kernels", "exec-cuda", "exec", "kernels")  # likewise

SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": ":".join(
        (
            *("detect_leaks=1", "strict_string_checks=1", "detect_stack_use_after_return=1"),
            "handle_sigill=1",  # undefined behaviour: see cmake/DjinnOptions.cmake
        )
    ),
    "TSAN_OPTIONS": f"halt_on_error=1:suppressions={ROOT}/tests/tsan.supp",
}


@dataclass
class Outcome:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    unsteady: int = 0
    notes: list[str] = field(default_factory=list)  # failures and the reasons of skips
    log: Path | None = None
    cases: list[str] = field(default_factory=list)  # that failed and can be run by themselves
    again: Callable[[Sequence[str]], "Outcome"] | None = None

    def fail(self, note: str, case: str = "") -> None:
        """`case`: what names the test to its program; "" where it gets no second try."""
        self.failed += 1
        self.notes.append(f"FAILED {note}")
        if case:
            self.cases.append(case)

    def skip(self, note: str) -> None:
        self.skipped += 1
        self.notes.append(f"skipped {note}")


@dataclass(frozen=True)
class Program:
    """A test as CTest describes it."""

    preset: str
    name: str
    command: list[str]
    directory: str
    labels: list[str]
    environment: dict[str, str]
    serial: bool
    timeout_s: float

    @property
    def is_gtest(self) -> bool:
        return bool(self.command) and self.command[0].endswith("-test")


def programs_of(preset: str) -> list[Program]:
    answer = subprocess.run(
        ["ctest", "--test-dir", str(ROOT / "build" / preset), "--show-only=json-v1"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [program_from(preset, test) for test in json.loads(answer.stdout)["tests"]]


def program_from(preset: str, test: dict) -> Program:
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    return Program(
        preset=preset,
        name=test["name"],
        command=test.get("command", []),
        directory=properties.get("WORKING_DIRECTORY", str(ROOT)),
        labels=properties.get("LABELS", []),
        environment=dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", [])),
        serial=bool(properties.get("RUN_SERIAL", False)),
        timeout_s=float(properties.get("TIMEOUT", PROGRAM_TIMEOUT_S)),
    )


@dataclass(frozen=True)
class Selection:
    tier: str  # a key of TIERS_LEFT_OUT
    text: str  # "" for all

    @property
    def texts(self) -> tuple[str, ...]:
        return texts_of(self.text)

    def programs(self) -> list[Program]:
        presets = PRESETS if self.text else (*PRESETS, *PRESETS_MORE[self.tier])
        programs = [p for preset in presets for p in programs_of(preset) if self.takes(p)]
        assert {p.preset for p in programs} == set(presets) or self.text, "a preset has no tests"
        return programs

    def takes(self, program: Program) -> bool:
        if program.preset == "tsan-unity":
            return program.name == IN_TSAN_UNITY
        if set(program.labels) & set(TIERS_LEFT_OUT[self.tier]):
            return False
        # A plain program is one test, and its name is the program's.
        return program.is_gtest or self.names(program.name)

    def names(self, program: str) -> bool:
        return any(text in program for text in self.texts)

    def gtest_filter(self, program: str, preset: str = "release") -> str:
        """The value of GTEST_FILTER."""
        wanted = ["*"] if self.names(program) else [f"*{text}*" for text in self.texts]
        left_out = TIERS_LEFT_OUT[self.tier]
        if self.tier != "full" and preset != "release":
            left_out += NOT_SANITIZED
        return (
            ":".join(wanted)
            + ("-" if left_out else "")
            + ":".join(f"*.{beginning}_*" for beginning in left_out)
        )

    def pytest_arguments(self) -> list[str]:
        marks = " and ".join(f"not {tier}" for tier in TIERS_LEFT_OUT[self.tier])
        wanted = " or ".join(self.texts)
        return [*(["-m", marks] if marks else []), *(["-k", wanted] if wanted else [])]


def environment_of(
    program: Program, selection: Selection, report: Path, cases: Sequence[str]
) -> dict[str, str]:
    sanitizers = {} if program.preset == "release" else SANITIZER_ENVIRONMENT
    return {
        **os.environ,
        **sanitizers,
        "GTEST_OUTPUT": f"json:{report}",
        "GTEST_FILTER": ":".join(cases) or selection.gtest_filter(program.name, program.preset),
        "GTEST_COLOR": "no",
        "DJINN_BUILD_DIR": str(ROOT / "build" / program.preset),
        "DJINN_TEST_TIER": selection.tier,
        **program.environment,
    }


def run_program(program: Program, selection: Selection, cases: Sequence[str] = ()) -> Outcome:
    """`cases`: of a GoogleTest program, the tests that are run; empty for the selection's."""
    outcome = Outcome(f"{program.preset}/{program.name}{AGAIN if cases else ''}")
    outcome.again = partial(run_program, program, selection)
    if not program.command:
        outcome.fail("the program is not built")
        return outcome
    report = RESULTS / f"{outcome.name.replace('/', '-')}.json"
    report.unlink(missing_ok=True)
    outcome.log = report.with_suffix(".log")
    start = time.monotonic()
    with outcome.log.open("w") as log:
        code = exit_code(program, environment_of(program, selection, report, cases), log)
    outcome.seconds = time.monotonic() - start
    if program.is_gtest:
        count_gtest(outcome, report, code)
    else:
        count_plain(outcome, program.name, code)
    return outcome


def exit_code(program: Program, environment: dict[str, str], log: IO[str]) -> int | str:
    """The program's exit code, or a sentence that says why there is none."""
    try:
        return subprocess.run(
            program.command,
            cwd=program.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=program.timeout_s,
        ).returncode
    except subprocess.TimeoutExpired:
        return f"did not end within {program.timeout_s:.0f} s"
    except OSError as error:
        return f"could not be started: {error}"


def describe(code: int | str) -> str:
    return code if isinstance(code, str) else f"ended with exit code {code}"


def count_plain(outcome: Outcome, name: str, code: int | str) -> None:
    if code == 0:
        outcome.passed += 1
    elif code == SKIP_EXIT_CODE:
        outcome.skip(name)
    else:
        outcome.fail(f"{name}: {describe(code)}")


def count_gtest(outcome: Outcome, report: Path, code: int | str) -> None:
    try:
        suites = json.loads(report.read_text())["testsuites"]
    except (OSError, ValueError, KeyError):
        outcome.fail(f"the program {describe(code)} and left no report")
        return
    for suite in suites:
        for test in suite["testsuite"]:
            count_gtest_case(outcome, test)
    if code != 0 and outcome.failed == 0:
        outcome.fail(f"no test failed, but the program {describe(code)}")


def count_gtest_case(outcome: Outcome, test: dict) -> None:
    name = f"{test['classname']}.{test['name']}"
    if test.get("failures"):
        outcome.fail(name, case=name)
    elif test["status"] != "RUN":
        outcome.skip(f"{name}: disabled")
    elif test.get("result") == "SKIPPED":
        outcome.skip(name + skip_reason(outcome.log, name))
    else:
        outcome.passed += 1


def skip_reason(log: Path | None, name: str) -> str:
    """GoogleTest reports the reason in its output only, as a line above `[  SKIPPED ] NAME`."""
    text = log.read_text(errors="replace") if log else ""
    found = re.search(rf"\[ RUN +\] {re.escape(name)}\n.*?Skipped\n(.*?)\n", text, re.DOTALL)
    return f": {found[1]}" if found else ""


@dataclass(frozen=True)
class Share:
    """Of the tests of a folder, what one pytest runs."""

    name: str
    paths: Sequence[Path | str]  # folders, files, or the ids of single tests
    environment: tuple[tuple[str, str], ...] = ()


def run_pytest(share: Share, selection: Selection, stream: bool) -> Outcome:
    outcome = Outcome(f"pytest/{share.name}")
    report = RESULTS / f"pytest-{share.name}.xml"
    report.unlink(missing_ok=True)
    outcome.log = report.with_suffix(".log")
    outcome.again = lambda cases: run_pytest(
        Share(share.name + AGAIN, cases, share.environment), selection, stream=False
    )
    command = [
        *(sys.executable, "-m", "pytest", f"--junitxml={report}", "--tb=short", "-p"),
        *("no:cacheprovider", "-v" if stream else "-q", *selection.pytest_arguments()),
        *map(str, share.paths),
    ]
    environment = {
        **os.environ,
        "DJINN_BUILD_DIR": str(ROOT / "build" / "release"),
        "DJINN_TEST_TIER": selection.tier,
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict(share.environment),
    }
    start = time.monotonic()
    code = tee(command, environment, outcome.log, stream)
    outcome.seconds = time.monotonic() - start
    count_pytest(outcome, report, code)
    return outcome


def tee(command: list[str], environment: dict[str, str], log: Path, stream: bool) -> int | str:
    """Runs the command; its output goes to the log, and to stdout as it comes where stream.

    The command has a process group of its own, which is killed at the end: what it left behind
    would hold the pipe open.
    """
    with log.open("w") as out, concurrent.futures.ThreadPoolExecutor(1) as pool:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        RUNNING.add(process.pid)
        pool.submit(copy_lines, process.stdout, out, stream)
        try:
            return process.wait(PYTEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"did not end within {PYTEST_TIMEOUT_S} s"
        finally:
            kill_group(process.pid)
            RUNNING.discard(process.pid)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def kill_groups() -> None:
    """Ctrl-C does not reach them."""
    for leader in list(RUNNING):
        kill_group(leader)


def copy_lines(source: IO[str], log: IO[str], stream: bool) -> None:
    for line in source:
        log.write(line)
        if stream:
            say("  " + line.rstrip("\n"))


def say(text: str) -> None:
    """A line, or several, that no other thread's stand between."""
    with SAYING:
        print(text, flush=True)


PYTEST_TESTS_FAILED = 1
PYTEST_NO_TESTS = 5


def count_pytest(outcome: Outcome, report: Path, code: int | str) -> None:
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        outcome.fail(f"pytest {describe(code)} and left no report")
        return
    for case in cases:
        count_pytest_case(outcome, case)
    if code not in (0, PYTEST_TESTS_FAILED, PYTEST_NO_TESTS) and outcome.failed == 0:
        outcome.fail(f"no test failed, but pytest {describe(code)}")


def count_pytest_case(outcome: Outcome, case: ElementTree.Element) -> None:
    name = f"{case.get('classname')}.{case.get('name')}"
    skipped = case.find("skipped")
    faults = [*case.findall("failure"), *case.findall("error")]
    if faults:
        module = case.get("classname")  # "" where a file could not be collected
        path = f"{module.replace('.', '/')}.py" if module else ""
        outcome.fail(name, case=f"{path}::{case.get('name')}" if path else "")
        for fault in faults:
            outcome.notes += [f"| {line}" for line in (fault.text or "").splitlines()[-TAIL_LINES:]]
    elif skipped is not None:
        outcome.skip(f"{name}: {skipped.get('message')}")
    else:
        outcome.passed += 1


def run_again(outcome: Outcome) -> Outcome | None:
    """A second try, by themselves, of the tests that failed by their own assertions."""
    if not outcome.cases or not outcome.again:
        return None
    second = outcome.again(outcome.cases)
    if second.failed == 0 and second.passed == len(outcome.cases):
        outcome.unsteady = second.passed
        outcome.failed -= second.passed
    return second


def print_outcome(outcome: Outcome) -> None:
    lines = [
        f"{outcome.name:<28} {outcome.passed:>5} passed {outcome.failed:>3} failed "
        f"{outcome.skipped:>3} skipped {outcome.seconds:>7.1f} s"
        + (f", {outcome.unsteady} passed when run again" if outcome.unsteady else ""),
        *(f"    {note}" for note in outcome.notes),
    ]
    told = any(note.startswith("|") for note in outcome.notes)
    if outcome.failed + outcome.unsteady and outcome.log and outcome.log.exists():
        end = [] if told else outcome.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        lines += [f"    {'the end of' if end else 'more is in'} {outcome.log.relative_to(ROOT)}"]
        lines += [f"    | {line}" for line in end]
    say("\n".join(lines))


def shares_of(folder: Path) -> list[Share]:
    """Its files are dealt out, for neighbours are alike."""
    files = sorted(folder.rglob("test_*.py"))
    count = -(-len(files) // FILES_OF_A_SHARE)
    if count == 1:
        return [Share(folder.name, [folder])]
    return [Share(f"{folder.name}-{i + 1}", files[i::count]) for i in range(count)]


def shares_through_gate(top: Path, tier: str) -> list[Share]:
    """What runs once more, as if djinnd were on another machine."""
    folders = [one for name in REMOTE_FOLDERS for one in shares_of(top / name)]
    shares = []
    for carrier, files in REMOTE.items():
        by = [Share("e2e", [top / "e2e" / name for name in files])]
        by += folders if tier == "full" else []
        environment = (("DJINN_TEST_CARRIER", carrier),)
        shares += [
            replace(one, name=f"{carrier}-{one.name}", environment=environment) for one in by
        ]
    return shares


def shares_of_tests(tier: str) -> list[Share]:
    """Of tests/, the longest folders first; a test that stands elsewhere would never run."""
    top = ROOT / "tests"
    strays = [*top.glob("test_*.py"), *(ROOT / "python").rglob("test_*.py")]
    assert not strays, f"tests stand in folders of tests/, and not here: {strays}"
    files = Counter(top / path.relative_to(top).parts[0] for path in top.rglob("test_*.py"))
    del files[STYLE]
    folders = sorted(files, key=lambda folder: (folder.name not in FIRST, -files[folder]))
    near = [share for folder in folders for share in shares_of(folder)]
    return near + shares_through_gate(top, tier)


def run_all(selection: Selection) -> list[Outcome]:
    programs = selection.programs()
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if not selection.text or outcome.passed + outcome.failed + outcome.skipped:
            print_outcome(outcome)

    pytests = [partial(run_pytest, Share(STYLE.name, [STYLE]), selection, stream=False)]
    for share in shares_of_tests(selection.tier):
        if not (selection.text and share.environment):  # a name means the test, once
            pytests.append(partial(run_pytest, share, selection, stream=True))
    jobs = [Job(run) for run in pytests]
    for one in sorted(programs, key=lambda one: (one.name not in LONG, one.preset == "release")):
        jobs.append(Job(partial(run_program, one, selection), serial=one.serial))
    run_jobs(jobs, CORES, done, stop=kill_groups)
    return outcomes


def parse_arguments() -> Selection:
    parser = argparse.ArgumentParser(prog="./dev test")
    parser.add_argument("what", nargs="?", default="default", metavar="quick|full|TEXT")
    what = parser.parse_args().what
    if what in TIERS_LEFT_OUT:
        return Selection(what, "")
    if not re.fullmatch(r"[\w./]+", what):
        parser.error("TEXT is a part of a test's name: letters, digits, '_', '.' and '/'")
    return Selection("full", what)


def main() -> int:
    selection = parse_arguments()
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    outcomes = run_all(selection)
    told = [o for o in outcomes if o.failed]
    told += [second for outcome in told if (second := run_again(outcome)) and second.failed]
    for outcome in told:
        print_outcome(outcome)
    passed, failed, skipped, unsteady = (
        sum(getattr(outcome, what) for outcome in outcomes)
        for what in ("passed", "failed", "skipped", "unsteady")
    )
    if passed + failed + skipped + unsteady == 0:
        print(f"no test has a name with {selection.text!r} in it")
        failed = 1
    took, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (used.ru_utime + used.ru_stime) / took
    print(
        f"tier {selection.tier}, {took:.0f} s, {busy:.1f} of {CORES} cores busy; "
        "logs are in build/test"
    )
    print(
        f"{passed} passed, {failed} failed, {skipped} skipped"
        + (f", {unsteady} unsteady: failed, and passed when run again" if unsteady else "")
    )
    return 1 if failed or unsteady > UNSTEADY_AT_MOST else 0


if __name__ == "__main__":
    sys.exit(main())
