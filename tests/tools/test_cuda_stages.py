# SPDX-License-Identifier: Apache-2.0
"""The stages of bench/cuda that are written in Python, where there is no device to measure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "cuda"
STAGES = ("attention", "bits", "eager")
NOT_POSSIBLE = 77
MEASURES = """
import sys
sys.path.insert(0, sys.argv[1])
from stage import Stage

stage = Stage(float(sys.argv[2]))
stage.part("first", lambda: stage.fact("infinite", float("inf"), "GB/s"))
stage.part("second", lambda: stage.fact("finite", 1 / 3, "GB/s", "of the second"))
sys.exit(stage.failed)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *command], env=hidden, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_without_a_device_says_so_and_exits_with_77(stage: str) -> None:
    done = run(str(FOLDER / f"{stage}.py"))
    assert done.returncode == NOT_POSSIBLE, done.stderr
    assert done.stderr.splitlines()[-1] == "no CUDA device: PyTorch finds none"
    assert done.stdout == ""


def test_a_part_that_fails_is_told_and_the_next_one_measures() -> None:
    done = run("-c", MEASURES, str(FOLDER), "60")
    assert "first failed: infinite: the figure is not finite" in done.stderr
    fact = {"name": "finite", "value": 0.333333, "unit": "GB/s", "detail": "of the second"}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [fact]
    assert done.returncode == 1


def test_a_part_is_left_out_when_the_time_is_up() -> None:
    done = run("-c", MEASURES, str(FOLDER), "0")
    assert "second: left out, the time is up" in done.stderr
    assert (done.stdout, done.returncode) == ("", 0)
