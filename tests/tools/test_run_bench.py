# SPDX-License-Identifier: Apache-2.0
"""`./dev bench` is a judge: what does not hold, is missing or failed ends it with 1."""

import json
from pathlib import Path
from typing import Any

import pytest
import run_bench

BARS = [
    {"name": "quick", "benchmark": "a/fast", "field": "real_time", "unit": "us", "below": 2},
    {"name": "right", "benchmark": "a/right", "field": "same_tokens", "unit": "", "at_least": 1},
]
# A benchmark program of Python, which writes the report that stands beside it.
PROGRAM = """
import shutil, sys
(out,) = [one.split("=")[1] for one in sys.argv if one.startswith("--benchmark_out=")]
shutil.copy(__file__ + ".report", out)
"""


class Bench:
    """A tree of its own for the runner, with one program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._program = folder / "a_bench.py"
        self._program.write_text(PROGRAM)
        self._monkeypatch = monkeypatch
        (folder / "bars.json").write_text(json.dumps(BARS))
        for name, path in {
            "PROGRAMS": folder / "bin",
            "SCRIPTS": folder,
            "RESULTS": folder,
            "BARS": folder / "bars.json",
        }.items():
            monkeypatch.setattr(run_bench, name, path)

    def judge(self, *entries: dict[str, Any], text: str = "") -> int:
        """The exit code, where the program reports these."""
        report = self._program.with_name(self._program.name + ".report")
        report.write_text(json.dumps({"benchmarks": entries}))
        self._monkeypatch.setattr("sys.argv", ["run_bench.py", *([text] if text else [])])
        return run_bench.main()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def entry(name: str, **counters: Any) -> dict[str, Any]:
    times = {"real_time": 1.0, "cpu_time": 1.0, "time_unit": "us"}
    return {"run_name": name, "run_type": "iteration", **times, **counters}


FAST, RIGHT = entry("a/fast"), entry("a/right", same_tokens=1.0)


def test_all_bars_that_hold_end_it_with_0(bench: Bench) -> None:
    assert bench.judge(FAST, RIGHT) == 0


def test_a_bar_that_fails_ends_it_with_1(bench: Bench) -> None:
    assert bench.judge(entry("a/fast", real_time=3.0), RIGHT) == 1


def test_other_tokens_fail_a_bar(bench: Bench) -> None:
    assert bench.judge(FAST, entry("a/right", same_tokens=0.0)) == 1


def test_a_bar_that_was_not_measured_ends_it_with_1(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.judge(FAST) == 1
    assert "not measured" in capsys.readouterr().out


def test_a_benchmark_that_gave_up_ends_it_with_1_and_says_why(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    gave_up = entry("a/other", error_occurred=True, error_message="no file of that size")
    assert bench.judge(FAST, RIGHT, gave_up) == 1
    assert "FAILED a/other: no file of that size" in capsys.readouterr().out


def test_a_part_is_judged_by_its_own_bars(bench: Bench) -> None:
    assert bench.judge(FAST, text="fast") == 0
    assert bench.judge(FAST, text="right") == 1
    assert bench.judge(text="nothing") == 1


def test_peers_are_measured_and_judged_where_they_are_asked_for_alone(bench: Bench) -> None:
    with_peers = [*BARS, {**BARS[0], "benchmark": "peers/a"}]
    run_bench.BARS.write_text(json.dumps(with_peers))
    assert bench.judge(FAST, RIGHT) == 0
    folder = run_bench.SCRIPTS / "peers"
    folder.mkdir()
    (folder / "peers_bench.py").write_text(PROGRAM)
    report = folder / "peers_bench.py.report"
    report.write_text(json.dumps({"benchmarks": [entry("peers/a", real_time=3.0)]}))
    assert bench.judge(FAST, RIGHT, text="peers") == 1
    report.write_text(json.dumps({"benchmarks": [entry("peers/a")]}))
    assert bench.judge(FAST, RIGHT, text="peers") == 0


def test_the_tokens_of_every_generation_are_a_bar() -> None:
    """Speed at other tokens is none."""
    bars = json.loads((Path(run_bench.__file__).parents[1] / "bench/bars.json").read_text())
    timed = {bar["benchmark"] for bar in bars if bar["benchmark"].startswith("ghost/generate_")}
    judged = {bar["benchmark"] for bar in bars if bar["field"] == "same_tokens"}
    assert {name for name in timed if not name.endswith("/bytes")} == judged


def test_each_form_of_the_row_contract_is_judged_by_all_that_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(run_bench.__file__).parents[1] / "bench"
    monkeypatch.syspath_prepend(folder)
    from contract_bench import FORMS

    measured = {f"{name}_{threads}" for name, form in FORMS.items() for threads in form.crowds}
    judged: dict[str, set[str]] = {}
    for bar in json.loads((folder / "bars.json").read_text()):
        if bar["benchmark"].startswith("contract/"):
            judged.setdefault(bar["field"], set()).add(bar["benchmark"])
    counted = ("differing", "kills", "seen_paused", "together", "left_beside", "killed_beside")
    assert judged == dict.fromkeys(counted, measured)
