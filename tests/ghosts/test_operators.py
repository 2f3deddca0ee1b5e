# SPDX-License-Identifier: Apache-2.0
"""Operators on the device: equal to the CPU bit for bit, or refused in so many words."""

from pathlib import Path
from unittest import mock

import opinfo
import pytest
from private_daemon import Daemon

SAMPLES = 5  # of an operator and dtype; `./dev matrix --operators` takes all
FEW = ["add", "softmax", "nn.functional.linear", "cat", "index_select", "sum", "clamp", "sort"]


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


def test_a_known_reason_excuses_errors_alone() -> None:
    name = next(iter(opinfo.KNOWN))
    report = opinfo.Report(name)
    report.count("error")
    assert opinfo.Summary.of([report]).unknown == []
    report.count("differs")
    assert opinfo.Summary.of([report]).unknown == [report]


def test_a_reason_that_nothing_needs_is_stale() -> None:
    needed, needless, *_ = opinfo.KNOWN
    reports = [opinfo.Report(needed), opinfo.Report(needless), opinfo.Report("add")]
    reports[0].count("error")
    reports[1].count("equal")
    assert opinfo.Summary.of(reports).stale == [needless]


def bench(name: str) -> opinfo.Bench:
    return opinfo.Bench(opinfo.OPERATORS[name], "wrong", opinfo.torch.device("cpu"))


def attention(dropout_p: float) -> opinfo.SampleInput:
    query, key, value = opinfo.torch.ones(3, 1, 2, 4, 8).unbind()
    return opinfo.SampleInput(query, args=(key, value), kwargs={"dropout_p": dropout_p})


def test_other_values_are_excused_where_a_sample_draws() -> None:
    name = "nn.functional.scaled_dot_product_attention"
    assert bench(name).verdict(attention(dropout_p=0.5))[0] == "metadata"
    assert bench(name).verdict(attention(dropout_p=0.0))[0] == "differs"


def test_an_error_sample_that_is_accepted_is_compared() -> None:
    refused = bench("add")
    with mock.patch.object(refused, "error_samples", lambda: iter([accepted()])):
        refused.each(refused.error_samples, 1)
    assert refused.report.outcomes == {"differs": 1}


def accepted() -> opinfo.SampleInput:
    return opinfo.SampleInput(opinfo.torch.ones(2), args=(opinfo.torch.ones(2),))


def test_samples_that_cannot_be_made_are_bad() -> None:
    report = opinfo.Report("add")
    report.count("unmade")
    assert report.bad


def test_the_table_says_what_was_tried() -> None:
    text = opinfo.TABLE.read_text()
    assert f"samples of {opinfo.tried()}," in text
    assert f"PyTorch {opinfo.torch.__version__}'s own samples" in text, "./dev matrix --operators"


def test_a_result_on_another_device_is_seen() -> None:
    with pytest.raises(opinfo.OtherDeviceError):
        opinfo.leaf_on_the_cpu(opinfo.torch.ones(1), opinfo.torch.device("meta"))


def test_no_reason_excuses_a_result_on_another_device() -> None:
    for expected in (opinfo.torch.ones(1), ValueError()):
        error = opinfo.OtherDeviceError("a result is on meta")
        judged = bench("cat")
        judged.report.count(*judged.raised(expected, error, accepted()))
        assert opinfo.Summary.of([judged.report]).unknown == [judged.report]


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
    assert opinfo.Summary.of(reports).good, in_words(reports)


@pytest.mark.ci
@pytest.mark.usefixtures("device")
def test_every_known_reason_is_still_needed(daemon: Daemon, tmp_path: Path) -> None:
    reports = opinfo.run(daemon, tmp_path, opinfo.ALL, "ghost", list(opinfo.KNOWN))
    found = opinfo.Summary.of(reports)
    assert not found.stale, f"fail no more: {found.stale}"
    assert not found.unknown, in_words(reports)
