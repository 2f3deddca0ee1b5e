# SPDX-License-Identifier: Apache-2.0
"""`./dev test`: what runs beside what, and that nothing which fails or hangs goes uncounted."""

import random
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import groups_of_tests
import job_queue
import pytest
import run_tests
from job_queue import Job, run_jobs

CORES = (1, 2, 4)
PLAIN, SERIAL = 12, 4
WAIT_S = 60.0  # only a failure takes as long


def nothing() -> None:
    """A job, or what is done with its result."""


def jobs_of(plain: int, serial: int) -> list[Job[None]]:
    return [Job(nothing, serial=i >= plain) for i in range(plain + serial)]


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("seed", range(20))
def test_a_serial_job_has_a_core_and_no_core_waits_for_it(cores: int, seed: int) -> None:
    chance = random.Random(seed)
    waiting, running = jobs_of(PLAIN, SERIAL), []
    chance.shuffle(waiting)
    while waiting or running:
        while job := job_queue.startable(waiting, running, cores):
            waiting.remove(job)
            running.append(job)
        serial = sum(job.serial for job in running)
        assert serial <= 1
        most = cores if serial else cores + 1
        assert len(running) <= most
        assert len(running) == most or all(job.serial for job in waiting)
        running.remove(chance.choice(running))


@pytest.mark.parametrize("cores", CORES)
def test_jobs_run_at_once_and_serial_ones_begin_first(cores: int) -> None:
    """Each of the first waits for the others: were fewer at once, or others, none would end."""
    begun: list[str] = []
    together = threading.Barrier(cores, timeout=WAIT_S)

    def first(name: str) -> str:
        begun.append(name)
        together.wait()
        return name

    plain = [Job(lambda i=i: first(f"plain {i}")) for i in range(cores - 1)]
    serial = Job(lambda: first("serial"), serial=True)
    results: list[str] = []
    run_jobs([*plain, serial], cores, results.append, stop=nothing)
    assert begun[0] == "serial"
    assert sorted(results) == sorted(begun) and len(results) == cores


def test_where_a_job_raises_those_that_run_are_stopped_and_no_other_begins() -> None:
    stopped, begun = threading.Event(), []

    def fails() -> None:
        raise OSError("no such program")

    jobs = [
        Job(fails, serial=True),
        Job(lambda: begun.append(stopped.wait(WAIT_S))),
        *(Job(lambda: begun.append(False)) for _ in range(3)),
    ]
    with pytest.raises(OSError, match="no such program"):
        run_jobs(jobs, 2, lambda _: None, stop=stopped.set)
    assert begun == [True]


class Runner:
    """The runner in a tree of its own, with programs in place of CMake's and pytest."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        for name, value in {
            "ROOT": folder,
            "RESULTS": folder / "results",
            "shares_of_tests": lambda tier: [],
            "run_pytest": lambda share, *_, **__: run_tests.Outcome(share.name),
        }.items():
            monkeypatch.setattr(run_tests, name, value)
        monkeypatch.setattr("sys.argv", ["run_tests.py"])

    def program(self, name: str, *command: str, **more: Any) -> run_tests.Program:
        directory = str(self._folder)
        given = {"labels": [], "environment": {}, "serial": True, "timeout_s": WAIT_S, **more}
        return run_tests.Program("release", name, list(command), directory, **given)

    def run(self, programs: Sequence[run_tests.Program]) -> int:
        self._monkeypatch.setattr(run_tests.Selection, "programs", lambda _: list(programs))
        return run_tests.main()


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(tmp_path, monkeypatch)


def test_serial_programs_that_fail_hang_or_are_missing_are_counted_and_told(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = [
        runner.program("failing", "sh", "-c", "echo what it said; exit 3"),
        runner.program("hanging", "tail", "-f", "/dev/null", timeout_s=0.1),
        runner.program("missing", "/no/such/program"),
        runner.program("unbuilt"),
        runner.program("good", "true"),
        runner.program("other", "true", serial=False),
        runner.program("skipping", "sh", "-c", f"exit {run_tests.SKIP_EXIT_CODE}"),
    ]
    assert runner.run(programs) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "2 passed, 4 failed, 1 skipped"
    for told in (
        "FAILED failing: ended with exit code 3",
        "| what it said",
        "FAILED hanging: did not end within 0 s",
        "FAILED missing: could not be started",
        "FAILED the program is not built",
    ):
        assert told in said
    assert re.search("^release/good .* 1 passed", said, re.MULTILINE)


def test_where_all_pass_it_ends_with_0(runner: Runner) -> None:
    assert runner.run([runner.program(f"good-{i}", "true") for i in range(5)]) == 0


TESTS = re.compile(
    r"^(?:async )?def (test_\w+)|^TEST\w*\(\s*([^)]+)\)|djinn_test\(([\w-]+)", re.MULTILINE
)


def names_of_tests() -> set[str]:
    """Of all programs, files and tests, as the sources have them."""
    folders = ("daemon", "kernel", "tests")
    files = [
        file
        for folder in folders
        for pattern in ("*_test.cc", "test_*.py", "*_for_tests.h", "CMakeLists.txt")
        for file in (run_tests.ROOT / folder).rglob(pattern)
    ]
    found = {file.stem for file in files}
    for file in files:
        for names in TESTS.findall(file.read_text()):
            found.update(re.sub(r",\s*", ".", name) for name in names if name)
    return found


def test_each_text_of_a_group_is_of_some_test_and_cuda_has_all_of_the_gpus() -> None:
    names = names_of_tests()
    assert len(names) > 1000
    for group, texts in groups_of_tests.GROUPS.items():
        for text in texts:
            assert any(text in name for name in names), f"{group}: {text}"
    for texts in groups_of_tests.GPU_GROUPS.values():
        assert set(texts) <= set(groups_of_tests.texts_of("cuda"))


def test_a_group_selects_by_each_of_its_texts_and_any_other_text_by_itself() -> None:
    group = run_tests.Selection("full", "cuda_kernels")
    assert group.gtest_filter("cuda-kernels") == "*"
    assert group.gtest_filter("exec") == "*cuda-kernels*:*cuda-emulator*"
    assert group.pytest_arguments() == ["-k", "cuda-kernels or cuda-emulator"]
    one = run_tests.Selection("full", "scratch")
    assert (one.gtest_filter("exec"), one.pytest_arguments()) == ("*scratch*", ["-k", "scratch"])
    assert run_tests.Selection("full", "").gtest_filter("exec") == "*"


def test_what_is_no_matter_of_memory_runs_with_sanitizers_in_the_full_tier_alone() -> None:
    default, full = (run_tests.Selection(tier, "") for tier in ("default", "full"))
    assert default.gtest_filter("exec", "release") == "*-*.full_*"
    assert default.gtest_filter("exec", "asan") == "*-*.full_*:*.once_*:*.ci_once_*"
    assert full.gtest_filter("exec", "asan") == "*"
    assert run_tests.Selection("quick", "").gtest_filter("exec") == "*-*.ci_*:*.full_*"
