# SPDX-License-Identifier: Apache-2.0
"""The comparison itself: it passes what is equal and sees what is not. No ghost is needed."""

from pathlib import Path

import compare
import zoo
from private_daemon import Daemon


def test_a_model_equals_itself(forks: compare.Forks, daemon: Daemon, tmp_path: Path) -> None:
    result = forks.compared("llama", daemon, tmp_path, "local")
    assert result.passed, result.reasons
    names = {zoo.name_of(dtype, variant) for dtype in zoo.DTYPES for variant in zoo.VARIANTS}
    assert set(result.forward) == set(result.generate) == names


def test_one_changed_bit_of_each_number_of_a_weight_is_seen(
    forks: compare.Forks, daemon: Daemon, tmp_path: Path
) -> None:
    result = forks.compared("bert", daemon, tmp_path, "wrong")
    assert not result.passed
    for dtype in zoo.DTYPES:
        verdict = result.forward[zoo.name_of(dtype, "one")]
        assert "logits differs by at most" in verdict
        assert "error against float64" in verdict


def test_a_crash_is_named_with_its_signal_and_its_stage(
    forks: compare.Forks, daemon: Daemon, tmp_path: Path
) -> None:
    result = forks.compared("bert", daemon, tmp_path, "crash")
    (reason,) = result.reasons
    assert "killed by SIGABRT" in reason and "in stage 'build, float32'" in reason
