# SPDX-License-Identifier: Apache-2.0
"""The comparison itself: it passes what is equal and sees what is not. No ghost is needed."""

from pathlib import Path

import compare
from private_daemon import Daemon


def test_a_model_equals_itself(daemon: Daemon, tmp_path: Path) -> None:
    result = compare.in_child("llama", daemon, tmp_path, "local")
    assert result.passed, result.reasons
    assert set(result.forward) == set(result.generate) == {"one", "batch"}


def test_one_changed_bit_of_each_number_of_a_weight_is_seen(daemon: Daemon, tmp_path: Path) -> None:
    result = compare.in_child("bert", daemon, tmp_path, "wrong")
    assert not result.passed
    assert "logits differs by at most" in result.forward["one"]
    assert "error against float64" in result.forward["one"]


def test_a_crash_is_named_with_its_signal_and_its_stage(daemon: Daemon, tmp_path: Path) -> None:
    result = compare.in_child("bert", daemon, tmp_path, "crash")
    (reason,) = result.reasons
    assert "killed by SIGABRT" in reason and "in stage 'build'" in reason
