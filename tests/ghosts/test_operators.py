# SPDX-License-Identifier: Apache-2.0
"""Operators on the device: equal to the CPU bit for bit, or refused in so many words."""

from pathlib import Path

import opinfo
import pytest
from private_daemon import Daemon

SAMPLES = 5  # of an operator and dtype; `./dev matrix --operators` takes all
FEW = ["add", "softmax", "nn.functional.linear", "cat", "index_select", "sum", "clamp", "sort"]


# Not as they should be, each for its reason. None crashes, none gives another value.
KNOWN = {
    "_native_batch_norm_legit": "its empty statistics are predicted with another shape",
    "aminmax": "an empty reduction and an out= of another dtype raise otherwise",
    "complex": "an out= of another dtype is converted, and one error has another type",
    "gather": "an out= of another dtype is converted",
    "gradient": "tensors of two devices raise otherwise",
    "logcumsumexp": "the meta kernel raises AssertionError for a dimension out of range",
    "narrow_copy": "a dimension out of range is an IndexError",
    "native_layer_norm": "an empty shape is a ValueError",
    "roll": "a dimension out of range is found in djinnd, when the value is read",
    "sparse.mm.reduce": "a sparse tensor is refused by PyTorch, in its words",
    "sparse.sampled_addmm": "a sparse tensor is refused by PyTorch, in its words",
    "tensor_split": "its indices must be on the CPU, as for any device; the samples move them",
}


def in_words(reports: list[opinfo.Report]) -> str:
    bad = [opinfo.describe(report) for report in reports if report.bad]
    return "\n".join([*bad, opinfo.Summary.of(reports).text()])


def test_the_cpu_equals_itself(daemon: Daemon, tmp_path: Path) -> None:
    reports = opinfo.run(daemon, tmp_path, SAMPLES, "local", FEW)
    assert [report.name for report in reports] == FEW
    assert opinfo.Summary.of(reports).good, in_words(reports)


def test_one_changed_bit_of_a_result_is_seen(daemon: Daemon, tmp_path: Path) -> None:
    (report,) = opinfo.run(daemon, tmp_path, 1, "wrong", ["add"])
    assert report.bad and report.outcomes["differs"]


def test_a_result_on_another_device_is_seen() -> None:
    with pytest.raises(opinfo.OtherDeviceError):
        opinfo.leaf_on_the_cpu(opinfo.torch.ones(1), opinfo.torch.device("meta"))


@pytest.fixture
def device() -> None:
    pytest.importorskip("djinn.torch", exc_type=ImportError)


@pytest.mark.usefixtures("device")
def test_often_used_operators_are_equal(daemon: Daemon, tmp_path: Path) -> None:
    reports = opinfo.run(daemon, tmp_path, SAMPLES, "ghost", FEW)
    assert opinfo.Summary.of(reports).good, in_words(reports)


@pytest.mark.usefixtures("device")
def test_factories_are_told_the_device(daemon: Daemon, tmp_path: Path) -> None:
    factories = ["arange", "eye", "full", "linspace", "ones", "tril_indices", "zeros"]
    reports = opinfo.run(daemon, tmp_path, 1, "ghost", factories)
    assert opinfo.Summary.of(reports).good, in_words(reports)
    assert all(report.on_device for report in reports)


@pytest.mark.ci
@pytest.mark.usefixtures("device")
def test_all_operators_are_equal_or_refused(daemon: Daemon, tmp_path: Path) -> None:
    reports = opinfo.run(daemon, tmp_path, SAMPLES, "ghost")
    summary = opinfo.Summary.of(reports)
    assert {report.name for report in reports if report.bad} <= KNOWN.keys(), in_words(reports)
    assert summary.share(summary.outcomes) >= opinfo.EQUAL_SHARE_MIN, in_words(reports)
