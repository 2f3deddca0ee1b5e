# SPDX-License-Identifier: Apache-2.0
"""Rule 9: a warm step makes no system call, but to wake a sleeper, and no allocator decision.
(A call of a ghost looks once whether its session still lives: a client may have been left alone for
long.) Nobody is woken more than twice a run.

System calls are counted by strace on all threads of the worker, and on the one here that is its
client; allocator decisions are counted by the worker. Warm is what was done before at these sizes,
with its memory in place."""

import gc
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn
import llama
import numpy as np
import pytest
import torch
import transformers
from private_daemon import Daemon

STEPS = 1000
LOOKS = 1  # of a ghost's call, at whether its session still lives
CLOCKS_OF_A_LOOK = 16  # of the processor, at a look at what stands around a generation
LONG = 20  # looks at that clock, of all steps: of those which took long since others had the cores
PAUSED_MAX = 5  # times that a pause may cut calls otherwise than before
ODD = 8  # calls of all steps together: an allocator's, and what begins and ends a generation
ASKED = 20  # of the worker, of all steps: where it got no core for a while, djinnd asks if it lives
BELL = r'\\1(\\0){7}", 8\b'  # what an eventfd is rung with
RING = r'sendmsg\(\d+, \{[^}]*iov_base="\\1", iov_len=1\}'  # and the completion bell
# Of waking and of falling asleep; and of yielding the core while looking whether there is work.
ALLOWED = re.compile(
    r"(futex|sched_yield|epoll_wait|poll|ppoll)\("
    rf'|write\(\d+, "{BELL}|{RING}'
    r'|recvfrom\(\d+, "(\\1)+", 64,'
    r"|restart_syscall\("  # what a thread does that strace found asleep
    r"|getpid\("  # a wait that lasts looks for signals, whose handlers may fork
)
CALL = re.compile(r"^(?:\d+ +)?(?!\+\+\+|---|<\.\.\. )(\w+\(.*)$", re.MULTILINE)
MARK = "getpgid("

TRIPLE = """srg 1 "triple"
input %x : float32[16]
%y = aten::mul.Scalar(%x, 3)
output %y
"""


@contextmanager
def traced(thread: int, file: Path, *options: str) -> Iterator[None]:
    """What the thread asks of the kernel is written to the file, a line a call."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    tracer = subprocess.Popen(
        [program, *options, "-o", str(file), "-p", str(thread)], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    try:
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not look at another process: {said.strip()}")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()


class Counted:
    """What happened in a block: calls that wake nobody, of each side; what the worker decided."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self._daemon = daemon
        self._files = directory / "worker", directory / "client"
        self.worker: Counter[str] = Counter()
        self.wakes = {"worker": 0, "client": 0}
        self.client: Counter[str] = Counter()
        self.increase: dict[str, int] = {}

    def count(self, work: Callable[[], Any]) -> "Counted":
        gc.collect()  # what other tests left open is closed before
        before = self._daemon.worker()
        client = traced(threading.get_native_id(), self._files[1])
        with traced(before["pid"], self._files[0], "-f"), client:
            os.getpgid(0)
            work()
            os.getpgid(0)
        after = self._daemon.worker()
        for name in ("runs", "planned_runs", "plan_misses", "slab_bytes", "tokens", "restarts"):
            self.increase[name] = after[name] - before[name]
        of_worker = CALL.findall(self._files[0].read_text())
        self.worker = others(of_worker)
        calls = CALL.findall(self._files[1].read_text())
        first, last = (i for i, call in enumerate(calls) if call.startswith(MARK))
        self.client = others(calls[first + 1 : last])
        self.wakes = {"worker": wakes(of_worker), "client": wakes(calls)}
        return self

    def expect_warm(self, steps: int, unplanned: int = 0, beside: int = 0) -> None:
        """unplanned: graphs that ran once, each of which the worker looks at for so long only.
        beside: submissions that are no runs."""
        clocks = CLOCKS_OF_A_LOOK * unplanned + LONG
        assert self.worker.pop("clock_gettime", 0) <= clocks, "a clock of the processor each step"
        assert sum(self.worker.values()) <= ASKED, f"the worker: {self.worker}"
        runs = self.increase["runs"]
        assert runs >= steps
        wakes_max = 2 * (runs + beside) + ODD
        assert max(self.wakes.values()) <= wakes_max, f"{self.wakes} wakes in {runs} runs"
        planned = runs - unplanned
        expected = {"planned_runs": planned, "plan_misses": 0, "slab_bytes": 0, "restarts": 0}
        assert {name: self.increase[name] for name in expected} == expected


def wakes(calls: list[str]) -> int:
    return sum(re.match(rf'write\(\d+, "{BELL}|{RING}', call) is not None for call in calls)


def others(calls: list[str]) -> Counter[str]:
    return Counter(call.partition("(")[0] for call in calls if not ALLOWED.match(call))


@pytest.fixture
def counted(device_daemon: Daemon, tmp_path: Path) -> Counted:
    return Counted(device_daemon, tmp_path)


@pytest.fixture(scope="module")
def ghost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    checkpoint = llama.save(tmp_path_factory.mktemp("llama"), 5)
    djinn.enable()
    yield transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    djinn.disable()


def ids(tokens: int) -> torch.Tensor:
    return (torch.arange(tokens)[None] % llama.VOCABULARY).to(djinn.device())


def test_runs_of_a_program(device_daemon: Daemon, counted: Counted) -> None:
    with device_daemon.connect("warm runs") as session:
        program = session.define(TRIPLE)
        x = np.arange(16, dtype=np.float32)

        def run(times: int) -> None:
            for _ in range(times):
                y = program(x=x)["y"]
            assert np.array_equal(y, x * 3)

        run(20)
        counted.count(lambda: run(STEPS)).expect_warm(STEPS)
        assert not counted.client, f"the client: {counted.client}"


def test_refs_that_are_made_and_released_over_and_over(
    device_daemon: Daemon, counted: Counted
) -> None:
    """Also where a large batch has left much that is granted and idle."""
    with device_daemon.connect("warm refs") as session:
        program = session.define(TRIPLE)
        for ref in [session.put(np.ones(1 << 20, np.float32)) for _ in range(20)]:
            ref.release()
        x = np.arange(16, dtype=np.float32)

        def run(times: int) -> None:
            for _ in range(times):
                x_ref = session.put(x)
                y = program(x=x_ref, outputs="ref")["y"]
                x_ref.release()
                y.release()

        run(20)
        before = device_daemon.status()["memory_sessions_bytes"]
        counted.count(lambda: run(STEPS)).expect_warm(STEPS, beside=3 * STEPS)
        looks = counted.client.pop("recvmsg", 0)
        assert looks <= STEPS, "a put looks once whether the session lives"
        assert not counted.client, f"the client: {counted.client}"
        assert device_daemon.status()["memory_sessions_bytes"] == before


@pytest.mark.ci
def test_a_replayed_call_of_a_ghost(
    ghost: Any, counted: Counted, stats: Callable[[], dict[str, Any]]
) -> None:
    """Where this process pauses, as on a busy machine, what it has recorded so far goes on its way
    by itself: a graph with other calls in it than before, which is not warm, and is counted
    again."""
    inputs = ids(8)

    def call(times: int) -> None:
        for _ in range(times):
            logits = ghost(inputs, use_cache=False).logits
        logits.cpu()

    for _ in range(PAUSED_MAX):
        call(20)
        before = stats()["idle_flushes"]
        counted.count(lambda: call(STEPS))
        if stats()["idle_flushes"] == before:
            break
    assert djinn.explain(ghost)["tier"] == 1
    counted.expect_warm(STEPS)
    looks = counted.client.pop("recvmsg", 0)
    assert looks <= LOOKS * STEPS + ODD
    assert counted.client.total() <= ODD, f"the client: {counted.client}"


@pytest.mark.ci
def test_a_token_of_a_generation(
    ghost: Any, counted: Counted, stats: Callable[[], dict[str, Any]]
) -> None:
    """In a sequence group that has grown: the generation before was cropped. What stands around a
    generation is a program from its third time on, where the process has not as many by then as it
    may have; else it runs once each time, without a plan."""
    inputs = ids(8)
    cache = transformers.DynamicCache()

    def generate() -> torch.Tensor:
        made = ghost.generate(
            *(inputs,),
            past_key_values=cache,
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            pad_token_id=0,
        )
        assert djinn.explain(ghost)["tier"] == 2
        cache.crop(inputs.shape[1] - 1)
        return made.cpu()

    first = generate()
    for _ in range(3):
        assert torch.equal(generate(), first)
    before = stats()
    counted.count(generate)
    around = {name: count - before[name] for name, count in stats().items()}
    counted.expect_warm(STEPS, unplanned=around["runs"] - around["program_runs"])
    assert counted.increase["runs"] == STEPS + around["runs"]
    assert around["runs"] <= ODD
    assert counted.increase["tokens"] == STEPS
    assert counted.client.total() <= ODD, f"the client: {counted.client}"


def test_what_is_not_warm_is_seen(device_daemon: Daemon, counted: Counted) -> None:
    """The first run of a program is rehearsed, in a slab that may have to grow."""
    with device_daemon.connect("cold run") as session:
        counted.count(lambda: session.define(TRIPLE.replace("3)", "5)"))(x=np.ones(16, np.float32)))
    assert {"recvmsg", "sendmsg"} <= counted.worker.keys()
    assert {"recvmsg", "sendmsg"} <= counted.client.keys()


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + 1,
    "sort": torch.sort,
    "topk": lambda x: torch.topk(x, 100),
    "masked select": lambda x: x[x > 0],
    "nonzero": torch.nonzero,
    "unique": torch.unique,
    "svd": lambda x: torch.linalg.svd(x[: 1 << 16].view(256, 256)),
    "conv2d": lambda x: torch.nn.functional.conv2d(
        x.view(8, 16, 128, 128), x[: 32 * 16 * 9].view(32, 16, 3, 3)
    ),
}


def first_of(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_was_made_before_is_begun_once(device_daemon: Daemon, call: str) -> None:
    x = torch.randn(1 << 21, generator=torch.Generator().manual_seed(7))
    ours = x.to(djinn.torch.device)
    expected = first_of(CALLS[call](x))
    first_of(CALLS[call](ours)).cpu()
    before = device_daemon.worker()["runs_repeated"]
    for _ in range(3):
        result = first_of(CALLS[call](ours)).cpu()
        assert torch.allclose(result, expected, rtol=1e-4, atol=1e-3)
    assert device_daemon.worker()["runs_repeated"] == before
