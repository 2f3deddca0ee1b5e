# SPDX-License-Identifier: Apache-2.0
"""bench/cuda/run_all, without a GPU: its stages work on the fake driver, and where there is none
each says so; what a stage learned is never lost."""

import importlib.machinery
import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tree import ROOT

RUN_ALL = ROOT / "bench" / "cuda" / "run_all"
OUTCOMES = {"measured", "not here", "broke", "killed at its limit", "left out: no time"}


def loaded() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("run_all", str(RUN_ALL))
    spec = importlib.util.spec_from_loader("run_all", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(RUN_ALL), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def outcomes(out: Path) -> dict[str, dict[str, Any]]:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    for outcome in found.values():
        assert set(outcome) == {"stage", "outcome", "seconds", "reason", "fake", "date", "facts"}
        assert outcome["outcome"] in OUTCOMES
        for fact in outcome["facts"]:
            assert {"name", "value"} <= set(fact) <= {"name", "value", "unit", "detail"}
    return found


def fact(outcome: dict[str, Any], start: str) -> Any:
    values = [f["value"] for f in outcome["facts"] if f["name"].startswith(start)]
    assert values, f"no fact starts with {start!r}"
    return values[0]


def test_the_stages_of_the_driver_work_on_the_fake(tmp_path: Path) -> None:
    done = run(tmp_path, "--fake", "--only", "01", "02", "confinement", "04")
    assert done.returncode == 0, done.stdout + done.stderr
    found = outcomes(tmp_path)
    assert {name: o["outcome"] for name, o in found.items()} == {
        "01-survive": "measured",
        "02-vmm": "measured",
        "03-confinement": "measured",
        "04-conformance": "measured",
    }
    for outcome in found.values():
        assert outcome["fake"]
        assert not [f for f in outcome["facts"] if f["name"].startswith("broken off")], outcome
    assert fact(found["01-survive"], "words lost 0.5 s after") == 0
    assert fact(found["01-survive"], "words that are not zero in fresh memory") > 0
    assert fact(found["02-vmm"], "create 64 MiB") > 0
    assert fact(found["04-conformance"], "tests that passed") > 10
    assert fact(found["04-conformance"], "tests that failed") == 0
    assert "mmap" in fact(found["03-confinement"], "system calls to map an extent")


def test_without_a_device_every_stage_says_so(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a GPU here")
    done = run(tmp_path, "--only", "00", "01", "02", "03", "attention")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, outcome in outcomes(tmp_path).items():
        assert outcome["outcome"] == "not here", name
        assert outcome["reason"], name


def test_a_stage_that_is_killed_has_told_what_it_knew(tmp_path: Path) -> None:
    run_all = loaded()
    program = tmp_path / "slow"
    program.write_text(
        """#!/usr/bin/env python3
import signal
print('{"name": "first", "value": 1}', flush=True)
print('{"name": "cut off', flush=True)
signal.pause()
"""
    )
    program.chmod(0o755)
    runner = run_all.Runner(tmp_path, tmp_path, budget_s=3, fake=False)
    outcome = runner.run(run_all.Stage("99", "slow", "slow", 60))
    assert outcome.outcome == "killed at its limit"
    assert outcome.facts == [{"name": "first", "value": 1}]
    left_out = runner.run(run_all.Stage("99", "late", "slow", 60))
    assert left_out.outcome == "left out: no time"


def test_a_stage_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "suvive")
    assert done.returncode == 1
    assert "suvive" in done.stderr and "survive" in done.stderr
