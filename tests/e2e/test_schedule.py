# SPDX-License-Identifier: Apache-2.0
"""Whose step a lane takes next: classes of sessions, policies of lanes, what is told of both."""

import re
import threading
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl
from long_runs import matmuls
from private_daemon import Daemon, running, wait_until

PROMPT = [256, *b"The lane "]
LONG: dict[str, Any] = {"max_new_tokens": 300, "stop_tokens": []}


class Talkers:
    """Sessions of a daemon, each of which generates when it is told to."""

    def __init__(self, daemon: Daemon, directory: Path, classes: list[str]) -> None:
        self.daemon, self.stack = daemon, ExitStack()
        self.sessions = [
            self.stack.enter_context(daemon.connect(name, service_class=name)) for name in classes
        ]
        self.generators = [djinn.Generator(one, directory) for one in self.sessions]
        for generator in self.generators:  # its plans are there before it is measured
            generator.generate([PROMPT], **LONG)

    def generate_at_once(self) -> None:
        begin = threading.Barrier(len(self.generators))

        def generate(generator: djinn.Generator) -> None:
            begin.wait()
            generator.generate([PROMPT], **LONG)

        threads = [threading.Thread(target=generate, args=(one,)) for one in self.generators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def contended(self) -> list[dict[str, Any]]:
        """The most decisions between several that were seen at once while all generated: few or
        none where a busy machine let one end before the next began."""
        thread = threading.Thread(target=self.generate_at_once)
        thread.start()
        most: list[dict[str, Any]] = []
        while thread.is_alive():
            some = [one for one in self.decisions() if one["ready"] > 1]
            most = max(most, some, key=len)
        thread.join()
        return most

    def decisions(self) -> list[dict[str, Any]]:
        (lane,) = ctl(self.daemon, "show", "--schedule", "-j").items()
        return list(lane["decisions"])


@pytest.fixture
def two(daemon: Daemon, byte_model: Path) -> Talkers:
    return Talkers(daemon, byte_model, ["interactive", "batch"])


@pytest.mark.parametrize("name", ["realtime", ""])
def test_an_unknown_class_is_told_with_those_that_there_are(daemon: Daemon, name: str) -> None:
    told = f"'{name}'.*interactive, normal, batch or idle"
    with pytest.raises(djinn.RequestError, match=told):
        djinn.connect(daemon.host, service_class=name)
    done = ctl(daemon, "generate", "/nowhere", "--prompt", "The ", "--class", name)
    assert done.code == 2 and re.search(told, done.err)


def test_djinnctl_generates_as_the_class_that_it_is_told(daemon: Daemon, byte_model: Path) -> None:
    words = ("generate", str(byte_model), "--prompt", "The ", "--max-new-tokens", "3")
    assert ctl(daemon, *words).code == 0
    for options, expected in (((), "normal"), (("--class", "idle"), "idle")):
        (before,) = ctl(daemon, "show", "--schedule", "-j").items()
        last = before["decisions"][-1]["number"]
        assert ctl(daemon, *words, *options).code == 0
        (lane,) = ctl(daemon, "show", "--schedule", "-j").items()
        assert {one["class"] for one in lane["decisions"] if one["number"] > last} == {expected}


def test_classes_share_a_busy_lane_by_their_weights(two: Talkers) -> None:
    with two.stack:
        samples: list[dict[str, Any]] = []

        def sample() -> bool:
            nonlocal samples
            samples = two.contended()
            return len(samples) > 100

        wait_until(sample, "both generate for long enough")
        given = Counter[str]()
        for one in samples:
            given[one["class"]] += one["measured_ns"]
        assert 2.5 < given["interactive"] / given["batch"] < 6.5, given


def test_the_schedule_of_a_session_is_that_of_its_lane(two: Talkers) -> None:
    with two.stack:
        for session in two.sessions:
            (lane,) = ctl(two.daemon, "show", "--schedule", session.id[:6], "-j").items()
            assert (lane["device"], lane["policy"]) == ("cpu:0", "fair")
            assert {one["session"] for one in lane["decisions"]} <= {s.id for s in two.sessions}
            numbers = [one["number"] for one in lane["decisions"]]
            assert len(numbers) == 256
            assert all(after == before + 1 for before, after in pairwise(numbers))
        text = ctl(two.daemon, "show", "--schedule").text()
        assert text.startswith("cpu:0 of ")
        assert text.splitlines()[1].split()[:3] == ["AGO", "SESSION", "CLASS"]
    assert "There is no session" in ctl(two.daemon, "show", "--schedule", "ffffffffffff").err


def test_fifo_takes_a_generation_to_its_end(byte_model: Path) -> None:
    with running("--policy", "fifo") as daemon:
        two = Talkers(daemon, byte_model, ["normal", "normal"])
        with two.stack:
            two.generate_at_once()
            sessions = [one["session"] for one in two.decisions()]
            assert sum(before != after for before, after in pairwise(sessions)) <= 4


def test_fair_lets_two_generations_take_turns(daemon: Daemon, byte_model: Path) -> None:
    two = Talkers(daemon, byte_model, ["normal", "normal"])
    with two.stack:

        def take_turns() -> bool:
            sessions = [one["session"] for one in two.contended()]
            return sum(before != after for before, after in pairwise(sessions)) > 50

        wait_until(take_turns, "they take turns")


def small_runs_beside_a_long_one(daemon: Daemon, rounds: int) -> float:
    """How many, submitted one after the other, for each of the long runs."""
    x = np.ones((640, 640), np.float32)
    source = 'srg 1 "small"\ninput %x : float32[4]\n%y = aten::neg(%x)\noutput %y\n'
    with daemon.connect("long") as one, daemon.connect("loop") as other:
        long, small = one.define(matmuls(10)), other.define(source)
        ended = threading.Event()

        def run_long() -> None:
            for _ in range(rounds):
                long(x=x)
            ended.set()

        long(x=x)
        small(x=x[0, :4])
        thread = threading.Thread(target=run_long)
        thread.start()
        runs = 0
        while not ended.is_set():
            small(x=x[0, :4])
            runs += 1
        thread.join()
    return runs / rounds


def test_a_loop_of_small_runs_gets_its_share_beside_long_ones(daemon: Daemon) -> None:
    with running("--policy", "fifo") as fifo:
        in_turns = small_runs_beside_a_long_one(fifo, 20)
    # Where the machine is busy, its client has the less of it.
    wait_until(lambda: small_runs_beside_a_long_one(daemon, 20) > 10 * in_turns, "it has a share")


def test_idle_waits_for_all_others(daemon: Daemon, byte_model: Path) -> None:
    two = Talkers(daemon, byte_model, ["normal", "idle"])
    with two.stack:

        def met() -> bool:
            contended = two.contended()
            assert all(one["class"] == "normal" for one in contended)
            return len(contended) > 100

        wait_until(met, "both generate at once")
