# SPDX-License-Identifier: Apache-2.0
"""Pieces of programs that are captured and replayed launch what their operators do, one by one: the
same kernels with the same grids, the same products and copies with the same addresses, in the same
order. Compared with the same program in a process in which nothing can be captured."""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_process import BUILD, HERE, start
from launch_log import Line, count, launched, line_of, sections

DATA = HERE.parent / "data"
MODELS = ("gpt2.decode", "llama.decode", "qwen2.decode", "bert")
GRAPHS = {
    name: DATA / ("captures" if "." in name else "forwards") / f"{name}.srg" for name in MODELS
}
# Of copies alone, which the fake does: what is read in the end is what was written at first.
COPIES = """srg 1 "copies"
symbol tokens 1..1 tokens
symbol past 0..1023 past
symbol capacity 2..1024 capacity
input %x : float32[8, 8]
%a = aten::clone(%x)
%b = aten::clone(%a)
%c = aten::clone(%b)
sequence %s key 0 : float32[1, 1, capacity, 64]
%n = aten::view(%c, [1, 1, 1, 64])
%t = djinn::kv_append(%s, %n, past)
%d = aten::clone(%b)
%e = aten::clone(%d)
%f = aten::clone(%e)
%g = aten::zeros([past + 1, 512])
output %f
output %c
output %g
"""
NONE = ";".join(f"cudaStreamBeginCapture@{call}=NOT_SUPPORTED" for call in range(1, 400))
WARM = range(6, 9)  # of eight: behind one that is recorded, three more, and the capture
PARTS = ("again", "moved", "trimmed", "anew")
STEPS = range(1, 15)
WARM_STEPS = range(9, 13)  # with a token behind 13 to 16, whose bucket's first step is the fifth
RUN = re.compile(
    r"(?P<name>\S+) (?P<section>again|moved|trimmed|step|anew) (?P<number>\d+)"
    r" captured (?P<captured>\d+) replayed (?P<replayed>\d+)"
    r" launches (?P<launches>\d+) failed (?P<failed>\d+)"
    r" without room (?P<without_room>\d+) dropped (?P<dropped>\d+) graphs (?P<graphs>\d+)"
    r" bytes (?P<bytes>\d+)(?P<sums>.*)"
)


class Run(NamedTuple):
    code: int
    log: dict[str, list[Line]]
    printed: str
    errors: str

    def runs(self) -> list[dict[str, str]]:
        return [found.groupdict() for found in RUN.finditer(self.printed)]

    def sums(self) -> list[str]:
        return [run["sums"] for run in self.runs()]


def run_pieces(folder: Path, graph: Path, options: str = "") -> Run:
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    done = start(log, [str(BUILD / "bin/run-graph"), "--pieces", str(graph)], options)
    return Run(done.returncode, sections(log), done.stdout, done.stderr)


class Pair(NamedTuple):
    name: str
    captured: Run
    plain: Run


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pieces")
    graph = GRAPHS[request.param]
    runs = [run_pieces(folder / name, graph, NONE * (name == "plain")) for name in ("a", "plain")]
    for run in runs:
        assert run.code == 0, run.errors
    return Pair(request.param, *runs)


def done(lines: list[Line]) -> list[Line]:
    """All that the device was given to do, with its addresses."""
    return [
        line
        for line in launched(lines)
        if line.is_launch() or line.is_product() or re.match("cudaMem(cpy|set)", line.function)
    ]


@pytest.mark.ci
def test_a_replayed_run_gives_the_device_what_its_operators_would(pair: Pair) -> None:
    """All of it, at the same addresses, whether inputs have moved, or all was dropped."""
    names = [name for name in pair.captured.log if name.startswith(f"{pair.name}/")]
    assert len(names) == len(PARTS) * 8 + len(STEPS)
    for name in names:
        assert done(pair.captured.log[name]) == done(pair.plain.log[name]), name


@pytest.mark.ci
def test_warm_runs_are_replayed_for_the_most_part(pair: Pair) -> None:
    warm = [f"{pair.name}/{part} {number}" for part in PARTS for number in WARM]
    if pair.name != "bert":
        warm += [f"{pair.name}/step {number}" for number in WARM_STEPS]
    for name in warm:
        lines = pair.captured.log[name]
        direct = count(lines, Line.is_launch) + count(lines, Line.is_product)
        graphs = sum(line.function == "cudaGraphLaunch" for line in lines)
        assert graphs >= 2
        assert direct < len(done(lines)) / 2


@pytest.mark.ci
def test_a_warm_replayed_run_asks_nobody_for_memory_and_waits_for_nothing(pair: Pair) -> None:
    for part in PARTS:
        for number in WARM:
            lines = pair.captured.log[f"{pair.name}/{part} {number}"]
            assert count(lines, Line.is_allocation) == count(lines, Line.is_free) == 0
            assert count(lines, Line.is_wait) == 0
            assert not [line for line in lines if re.match("cu[A-Z]", line.function)]
            assert not [line for line in lines if line.error]


def test_what_cannot_be_captured_is_told_and_counted(pair: Pair) -> None:
    last = pair.plain.runs()[-1]
    assert int(last["failed"]) > 0
    assert last["captured"] == last["replayed"] == "0"
    assert "notice: No graph was captured, or launched, of " in pair.plain.printed
    assert "notice" not in pair.captured.printed
    assert pair.captured.runs()[-1]["failed"] == "0"


def test_graphs_go_with_memory_that_moves_and_with_their_program(pair: Pair) -> None:
    runs = {(run["section"], int(run["number"])): run for run in pair.captured.runs()}
    assert int(runs["again", 8]["graphs"]) > 0
    # Inputs that have moved have graphs of their own; those of the former place are kept.
    assert int(runs["moved", 8]["captured"]) > int(runs["again", 8]["captured"])
    assert int(runs["trimmed", 1]["graphs"]) == 0
    assert int(runs["trimmed", 1]["dropped"]) == int(runs["moved", 8]["graphs"])
    assert f"{pair.name} forgotten graphs 0" in pair.captured.printed


# --- bytes


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = tmp_path_factory.mktemp("copies") / "copies.decode.srg"
    graph.write_text(COPIES)
    return graph


@pytest.fixture(scope="module")
def plain_copies(copies: Path) -> Run:
    plain = run_pieces(copies.parent / "plain", copies, NONE)
    assert plain.code == 0, plain.errors
    return plain


@pytest.mark.ci
def test_outputs_and_the_whole_cache_are_the_bytes_of_a_process_without_captures(
    copies: Path, plain_copies: Run
) -> None:
    captured = run_pieces(copies.parent / "captured", copies)
    assert captured.code == 0, captured.errors
    assert captured.sums() == plain_copies.sums()
    runs = {(run["section"], int(run["number"])): run for run in captured.runs()}
    assert int(runs["step", 14]["replayed"]) > 20
    # The fifth step's plan needs a larger slab.
    assert int(runs["step", 5]["dropped"]) > int(runs["step", 4]["dropped"])
    assert runs["step", 5]["graphs"] == "0"
    # Each run has other bytes than the one before, and both outputs are its input's.
    outputs = [sums.split()[:2] for sums in captured.sums()]
    assert all(f == c for f, c in outputs)
    assert all(one != another for one, another in pairwise(outputs))


# --- how much of it

BYTES_MAX = 16 << 20


def chain(folder: Path, length: int) -> Path:
    """A program of one piece of so many copies."""
    graph = folder / "chain.srg"
    lines = [f"%c{i} = aten::clone(%c{i - 1})" for i in range(1, length + 1)]
    graph.write_text(
        "\n".join(['srg 1 "chain"', "input %c0 : float32[8, 8]", *lines, f"output %c{length}", ""])
    )
    return graph


@pytest.mark.ci
def test_graphs_have_a_limit_and_the_least_recently_used_ones_go(tmp_path: Path) -> None:
    run = run_pieces(tmp_path / "run", chain(tmp_path, 3400))
    assert run.code == 0, run.errors
    runs = {(one["section"], int(one["number"])): one for one in run.runs()}
    assert (runs["again", 8]["graphs"], runs["again", 8]["dropped"]) == ("1", "0")
    assert (runs["moved", 8]["graphs"], runs["moved", 8]["dropped"]) == ("1", "1")
    assert all(0 <= int(one["bytes"]) <= BYTES_MAX for one in run.runs())
    assert int(runs["moved", 8]["bytes"]) > BYTES_MAX / 2


@pytest.mark.ci
def test_what_is_larger_than_the_limit_is_not_captured(tmp_path: Path) -> None:
    run = run_pieces(tmp_path / "run", chain(tmp_path, 6500))
    assert run.code == 0, run.errors
    last = run.runs()[-1]
    assert last["captured"] == last["failed"] == "0"
    assert int(last["without_room"]) > 0


# --- what fails

CALLS = (
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphGetNodes",
    "cudaGraphInstantiateWithFlags",
    "cudaGraphLaunch",
    "cudaGraphDestroy",
    "cudaGraphExecDestroy",
)
CODES = ("OUT_OF_MEMORY", "INVALID_VALUE")


@pytest.mark.ci
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", CALLS)
def test_where_a_call_fails_once_the_operators_are_called(
    copies: Path, plain_copies: Run, tmp_path: Path, call: str, code: str
) -> None:
    failing = run_pieces(tmp_path / "failing", copies, f"{call}@2={code}")
    assert failing.code == 0, failing.errors
    assert failing.sums() == plain_copies.sums()
    last = failing.runs()[-1]
    is_release = call.endswith("Destroy")
    assert int(last["failed"]) == (0 if is_release else 1)
    assert failing.printed.count("notice: ") == (0 if is_release else 1)
    assert int(last["replayed"]) > 10
    for name in failing.log:
        if "/" in name:
            assert done_well(failing.log[name]) == done_well(plain_copies.log[name]), name


def done_well(lines: list[Line]) -> list[Line]:
    return [line for line in done(lines) if not line.error]


@pytest.mark.ci
@pytest.mark.parametrize("call", CALLS[:5])
def test_a_device_that_fails_in_a_capture_or_a_replay_is_lost(
    copies: Path, tmp_path: Path, call: str
) -> None:
    failing = run_pieces(tmp_path / "failing", copies, f"{call}@2=ILLEGAL_ADDRESS")
    assert failing.code == 1
    assert "has failed" in failing.errors


@pytest.mark.ci
def test_an_operator_that_cannot_be_captured_is_called_between_two_graphs(
    copies: Path, plain_copies: Run, tmp_path: Path
) -> None:
    good = tmp_path / "good"
    run_pieces(good, copies)
    calls = [line_of(text).function for text in (good / "log").read_text().splitlines()]
    begun = calls.index("cudaStreamBeginCapture")
    inside = calls[:begun].count("cudaMemcpyAsync") + 2  # the second of the first capture
    refused = run_pieces(tmp_path / "refused", copies, f"cudaMemcpyAsync@{inside}=NOT_SUPPORTED")
    assert refused.code == 0, refused.errors
    assert refused.sums() == plain_copies.sums()
    last = refused.runs()[-1]
    assert last["failed"] == "1"
    assert "aten::clone" in refused.printed
