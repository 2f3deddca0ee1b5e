# SPDX-License-Identifier: Apache-2.0
"""Sessions that generate with one model and fast numerics at once, in djinnd's loop or in one of
their own: their token steps are computed together, and each has what it has alone, whoever comes,
goes, gives up or loses its worker."""

import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import Daemon, running, wait_until
from safetensors.torch import save_file

SESSIONS = 5
TOKENS = 150


class Crowd:
    """Sessions of one user on one model, each with a prompt and draws of its own."""

    def __init__(self, daemon: Daemon, model: Path, numerics: str) -> None:
        self.daemon, self.stack = daemon, ExitStack()
        self.pool = self.stack.enter_context(ThreadPoolExecutor(SESSIONS))
        self.generators = [
            djinn.Generator(
                self.stack.enter_context(daemon.connect(f"one of {SESSIONS}")),
                model,
                numerics=numerics,
            )
            for _ in range(SESSIONS)
        ]
        self.alone = [self.generate(number) for number in range(SESSIONS)]

    def generate(self, number: int, tokens: int = TOKENS, **options: Any) -> list[int]:
        prompt = [256, *(b"Whoever is number %d " % number * (1 + number))]
        drawn = self.generators[number].generate(
            [prompt],
            max_new_tokens=tokens,
            stop_tokens=[],
            temperature=1.0,
            seed=number,
            **options,
        )
        return drawn.tokens[0]

    def start(self, number: int, tokens: int = TOKENS) -> Future[list[int]]:
        return self.pool.submit(self.generate, number, tokens)

    def is_under_way(self, started: list[Future[list[int]]]) -> bool:
        """Or over already, where the machine is busy."""
        running = any(one["running"] for one in self.daemon.observer.sessions())
        return running or all(one.done() for one in started)

    def together(self) -> int:
        return int(self.daemon.worker()["runs_together"])


@pytest.fixture
def fast(byte_model: Path) -> Iterator[Crowd]:
    with running() as daemon:
        crowd = Crowd(daemon, byte_model, "fast")
        with crowd.stack:
            yield crowd


def test_each_has_the_tokens_that_it_has_alone_and_it_is_counted(fast: Crowd) -> None:
    assert fast.together() == 0

    def meet() -> bool:  # on a busy machine one may have ended before the next begins
        started = [fast.start(number) for number in range(SESSIONS)]
        assert [one.result(60) for one in started] == fast.alone
        return fast.together() > 0

    wait_until(meet, "what was computed together is counted")


def test_whoever_comes_and_goes_changes_nobodys_tokens(fast: Crowd) -> None:
    order = random.Random(7)
    going: dict[int, tuple[int, Future[list[int]]]] = {}
    for _ in range(40):
        number = order.randrange(SESSIONS)
        if number in going:
            tokens, started = going.pop(number)
            assert started.result(60) == fast.alone[number][:tokens]
        tokens = order.randrange(1, TOKENS)
        going[number] = (tokens, fast.start(number, tokens))
    for number, (tokens, started) in going.items():
        assert started.result(60) == fast.alone[number][:tokens]


def test_one_that_gives_up_leaves_the_others_as_they_were(fast: Crowd) -> None:
    others = [fast.start(number) for number in range(1, SESSIONS)]
    for _ in range(20):
        seen: list[int] = []

        def on_token(token: djinn.Token, seen: list[int] = seen) -> bool:
            seen.append(token.token)
            return len(seen) < 5

        fast.generate(0, on_token=on_token)
        assert seen[:5] == fast.alone[0][:5]
    assert [one.result(60) for one in others] == fast.alone[1:]


def test_deaths_of_the_worker_change_nobodys_tokens(fast: Crowd) -> None:
    for _ in range(5):
        started = [fast.start(number) for number in range(SESSIONS)]
        before = fast.daemon.worker_pid()
        wait_until(partial(fast.is_under_way, started), "a step")
        os.kill(before, signal.SIGKILL)
        assert [one.result(60) for one in started] == fast.alone


def test_what_is_exact_is_computed_by_itself(byte_model: Path) -> None:
    with running() as daemon:
        crowd = Crowd(daemon, byte_model, "exact")
        with crowd.stack:
            started = [crowd.start(number) for number in range(SESSIONS)]
            assert [one.result(60) for one in started] == crowd.alone
            assert crowd.together() == 0


@pytest.mark.parametrize("name", ["quick", ""])
def test_unknown_numerics_and_forms_are_told_with_those_that_there_are(
    daemon: Daemon, byte_model: Path, name: str
) -> None:
    with daemon.connect("asks") as session:
        for model in (djinn.Generator, djinn.Encoder):
            with pytest.raises(djinn.RequestError, match=f"'{name}'.*exact, fast and fast-only"):
                model(session, byte_model, numerics=name)
            with pytest.raises(djinn.RequestError, match=f"'{name}'.*There is int8"):
                model(session, byte_model, weights=name)
    for option, known in (("--numerics", "exact, fast or fast-only"), ("--weights", "int8")):
        done = ctl(daemon, "generate", str(byte_model), "--prompt", "The ", option, name)
        assert done.code == 2 and f"'{name}' is not" in done.err and known in done.err


def test_all_norms_and_rotations_of_the_llama_builder_are_djinns_own(
    daemon: Daemon, session: djinn.Session, byte_model: Path
) -> None:
    layers = json.loads((byte_model / "config.json").read_text())["num_hidden_layers"]
    generator = djinn.Generator(session, byte_model, numerics="fast")
    generator.generate([[256, 84, 104]], max_new_tokens=2, stop_tokens=[])
    programs = {one["name"]: one["id"] for one in ctl(daemon, "programs", "-j").items()}
    assert programs.keys() == {"llama.prefill", "llama.decode"}
    for program in programs.values():
        shown = ctl(daemon, "show", "--graph", program).text().splitlines()
        assert f"# norm: {2 * layers + 1} made, 0 left" in shown
        assert f"# rope: {2 * layers} made, 0 left" in shown


# --- loops of clients, each of whose steps is a run

STEP = """srg 1 "step" numerics "fast"
symbol t 1..16 tokens
symbol past 0..240 past
symbol cap 256..256 capacity
sequence %k key 0 : float32[1, 4, cap, 64]
weight %up "up" : float32[8192, 256]
weight %down "down" : float32[256, 8192]
input %n : float32[1, 4, t, 64]
%keys = djinn::kv_append(%k, %n, past)
%all = aten::slice.Tensor(%keys, 2, 0, past + t)
%mean = aten::mean.dim(%all, [2], true)
%x = aten::add.Tensor(%n, %mean)
%rows = aten::reshape(%x, [t, 256])
%wide = aten::linear(%rows, %up)
%kept = aten::relu(%wide)
%y = aten::linear(%kept, %down)
output %y
"""
LOOPS, STEPS = 3, 20


class Loop:
    """A session that computes a token at a time, each from the last one's result."""

    def __init__(self, session: djinn.Session, weights: Path, seed: int) -> None:
        self.seed = seed
        self.program = session.define(STEP, session.load(weights))
        self.group = session.sequence(1, 1, 4, 64, "float32", 256)

    def run(self) -> list[bytes]:
        self.group.crop(0)
        given = np.random.default_rng(self.seed).standard_normal((1, 4, 1, 64), np.float32)
        results = []
        for _ in range(STEPS):
            y = self.program(n=given, sequence=self.group)["y"]
            results.append(y.tobytes())
            given = np.tanh(y).reshape(1, 4, 1, 64)
        return results


@pytest.fixture(params=[1, 2, 3])
def loops(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Daemon, list[Loop]]]:
    torch.manual_seed(5)
    weights = tmp_path / "weights.safetensors"
    sizes = {"up": (8192, 256), "down": (256, 8192)}
    save_file({name: torch.randn(size) / 64 for name, size in sizes.items()}, weights)
    with running(threads=request.param) as daemon, ExitStack() as stack:
        sessions = [stack.enter_context(daemon.connect(f"loop {i}")) for i in range(LOOPS)]
        yield daemon, [Loop(session, weights, i) for i, session in enumerate(sessions)]


def test_runs_of_clients_loops_are_computed_together_and_each_has_what_it_has_alone(
    loops: tuple[Daemon, list[Loop]],
) -> None:
    daemon, ours = loops
    alone = [loop.run() for loop in ours]
    assert daemon.worker()["runs_together"] == 0
    with ThreadPoolExecutor(LOOPS) as pool:

        def meet() -> bool:
            assert list(pool.map(Loop.run, ours)) == alone
            return int(daemon.worker()["runs_together"]) > 0

        wait_until(meet, "what was computed together is counted")


def test_deaths_of_the_worker_change_nothing_of_clients_loops(
    loops: tuple[Daemon, list[Loop]],
) -> None:
    daemon, ours = loops
    alone = [loop.run() for loop in ours]
    with ThreadPoolExecutor(LOOPS) as pool:
        for _ in range(3):
            started = [pool.submit(loop.run) for loop in ours]
            os.kill(daemon.worker_pid(), signal.SIGKILL)
            assert [one.result(60) for one in started] == alone
