# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every wait for djinnd at once, whatever is still to be computed: the worker is
stopped while it is pressed, so that nothing else could end the wait. What was recorded before is
computed all the same, and the program can go on."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn
import llama
import pytest
import torch
import transformers
from private_daemon import Daemon, no_load_goes_on, stopped, wait_until
from twins import DEVICE, expect_equal, numbers

ASLEEP = 5  # looks in a row at a thread that sleeps: it waits
MIB = 1 << 20
HUNG_S = 10
OTHERS = itertools.count(10)  # constants of graphs that djinnd is not asked to admit
HOST = 1  # storage.h's Location: on its way to djinnd
Stats = Callable[[], dict[str, Any]]


def flush() -> None:
    djinn.torch._device.flush()


def state_of(task: Path) -> str:
    """R: it runs or could, S: it sleeps, T: it was stopped."""
    return task.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0]


def is_asleep(thread: int) -> bool:
    return state_of(Path(f"/proc/self/task/{thread}")) == "S"


@contextmanager
def computes_nothing(worker: int) -> Iterator[None]:
    """A thread of it may run on for a moment after it was told to stop."""
    with stopped([worker]):
        tasks = list(Path(f"/proc/{worker}/task").iterdir())
        wait_until(lambda: all(state_of(task) == "T" for task in tasks), "the worker stands")
        yield


@contextmanager
def when_it_waits(act: Callable[[], None]) -> Iterator[None]:
    """Acts once the thread that is in the block has gone to sleep."""
    waiting, over = threading.get_native_id(), threading.Event()

    def sleeps_long() -> bool:
        pause = time.sleep  # style: between two looks
        for _ in range(ASLEEP):
            if not is_asleep(waiting):
                return over.is_set()
            pause(0.002)
        return True

    def watch() -> None:
        wait_until(sleeps_long, "the call waits")
        if not over.is_set():
            act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def ctrl_c_is_python_s() -> Iterator[None]:
    """A test may run where SIGINT is ignored, as behind a shell's `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def worker(device_daemon: Daemon) -> int:
    (torch.ones(1, device=DEVICE) + 1).item()  # a session has one
    return device_daemon.worker()["pid"]


def interrupted(worker: int, call: Callable[[], Any]) -> None:
    """The call, with a worker that computes nothing meanwhile."""
    with computes_nothing(worker), when_it_waits(press_ctrl_c), pytest.raises(KeyboardInterrupt):
        call()


def test_an_operator_that_waits_for_room_has_not_happened(worker: int) -> None:
    total, added = torch.zeros(4, device=DEVICE), 0

    def add() -> None:
        nonlocal added
        for _ in map(total.add_, itertools.repeat(1)):  # no signal is heard between these two
            added += 1

    interrupted(worker, add)
    assert added > 0 and total.tolist() == [added] * 4
    total.add_(1)
    assert total.tolist() == [added + 1] * 4


def test_training_that_reads_nothing_is_interrupted_and_goes_on(worker: int) -> None:
    def trained(device: str, *, is_interrupted: bool) -> object:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(16, 16) for _ in range(12)]
        model = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        begin = {name: value.cpu().clone() for name, value in model.state_dict().items()}
        batch = numbers(device, 8, 16)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def steps() -> None:
            while True:
                step()

        if is_interrupted:
            interrupted(worker, steps)
        model.load_state_dict(begin)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        return [step() for _ in range(3)], list(model.state_dict().values())

    expect_equal(trained("cpu", is_interrupted=False), trained(DEVICE, is_interrupted=True))


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x[3].item(),
    "much": lambda x: x.repeat(8 * MIB // 4).cpu(),
    "show": repr,
    "synchronize": lambda x: torch.remote_accelerator.synchronize(),  # type: ignore[attr-defined]
    "memory": lambda x: torch.remote_accelerator.memory_allocated(),  # type: ignore[attr-defined]
    "give back": lambda x: torch.remote_accelerator.empty_cache(),  # type: ignore[attr-defined]
    "unknown shape": lambda x: x.nonzero(),
    "upload": lambda x: (torch.ones(16 * MIB).to(DEVICE).add_(x[0]), flush()),
}


@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_ends_and_what_was_recorded_is_computed(worker: int, wait: str) -> None:
    x, zeros = torch.arange(4.0).to(DEVICE), torch.zeros(4, device=DEVICE)
    x.add_(1)
    for _ in range(3):
        zeros.tolist()  # nothing is left to be handed over while the worker stands
        interrupted(worker, lambda: (zeros.add_(x), WAITS[wait](x)))
    assert zeros.tolist() == [3, 6, 9, 12] and x.tolist() == [1, 2, 3, 4]
    WAITS[wait](x)


def test_what_is_interrupted_holds_nothing_in_djinnd(worker: int) -> None:
    def held() -> int:
        gc.collect()
        torch.remote_accelerator.empty_cache()  # type: ignore[attr-defined]
        return torch.remote_accelerator.memory_allocated()  # type: ignore[attr-defined]

    x = torch.arange(4.0).to(DEVICE)
    x.add_(1)
    before = held()
    for wait in ("upload", "much", "unknown shape"):
        interrupted(worker, lambda call=WAITS[wait]: call(x))  # type: ignore[misc]
    assert held() == before


def test_who_waits_for_another_thread_s_call_is_interrupted(worker: int) -> None:
    """The other thread has the device's lock: it uploads more than there is room for."""
    large = torch.ones(16 * MIB).to(DEVICE)
    uploading = threading.Thread(target=lambda: (large.add_(1), flush()))
    with computes_nothing(worker):
        uploading.start()
        wait_until(lambda: is_asleep(uploading.native_id or 0), "the other thread waits")
        with when_it_waits(press_ctrl_c), pytest.raises(KeyboardInterrupt):
            large[:3].tolist()
    uploading.join()
    assert large[:3].tolist() == [2, 2, 2]


def test_sharing_parameters_is_interrupted_and_they_are_shared_the_next_time(
    device_daemon: Daemon, worker: int, stats: Stats
) -> None:
    gc.collect()
    torch.zeros(1, device=DEVICE).cpu()  # no model is open
    here = torch.nn.Linear(256, 256, bias=False).requires_grad_(False)
    expected = here.weight.clone()
    there = here.to(DEVICE)
    with stopped([device_daemon.process.pid]), when_it_waits(press_ctrl_c):
        with pytest.raises(KeyboardInterrupt):
            flush()
        assert stats()["sealed"] == 0
    assert torch.equal(there.weight.cpu(), expected)
    assert stats()["sealed"] == 1


def slowly(worker: int, read: Callable[[], Any]) -> None:
    """With a worker that goes on when a handler runs, which a wait's first moments do not let."""
    pending = numbers(DEVICE, 4)
    before = signal.signal(signal.SIGUSR1, lambda *_: os.kill(worker, signal.SIGCONT))
    try:
        with computes_nothing(worker), when_it_waits(lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            pending.add_(next(OTHERS))
            read()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_read_that_takes_long_is_one_read(worker: int, stats: Stats) -> None:
    x = torch.arange(4.0).to(DEVICE)
    x.add_(1).tolist()
    before = stats()
    slowly(worker, x[2].item)
    after = stats()
    assert after["reads"] - before["reads"] == 1
    assert after["bytes_down"] - before["bytes_down"] == x.element_size()


def test_a_weight_that_is_read_slowly_is_looked_at_once_each_time(
    worker: int, stats: Stats
) -> None:
    gc.collect()
    torch.zeros(1, device=DEVICE).cpu()  # no model is open
    weight = torch.nn.Linear(250, 250, bias=False).requires_grad_(False).to(DEVICE).weight
    flush()
    assert stats()["sealed"] == 1
    before = stats()["program_runs"]
    slowly(worker, weight.cpu)
    slowly(worker, weight.cpu)
    assert stats()["program_runs"] == before, "a graph is defined when it comes for a third time"
    weight.cpu()
    assert stats()["program_runs"] == before + 1


@pytest.mark.parametrize("use", ["cpu", "nonzero"])
def test_what_a_handler_replaces_is_not_used_as_it_was_before(worker: int, use: str) -> None:
    x, other, homes = torch.arange(3.0 * MIB).to(DEVICE), numbers(DEVICE, 4), list[int]()
    getattr(x.add_(1), use)().cpu()  # its shapes are inferred before the worker stands
    other.add_(1).tolist()
    new = torch.zeros(3 * MIB)
    new[7] = 5

    def handle(number: int, frame: Any) -> None:
        os.kill(worker, signal.SIGCONT)
        torch.remote_accelerator.synchronize()  # type: ignore[attr-defined]
        x.copy_(new)
        homes.append(djinn.torch._device.storage_home(x))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with computes_nothing(worker), when_it_waits(lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            other.add_(next(OTHERS))
            found = getattr(x, use)()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert homes == [HOST], "the ref that was waited for is gone"
    assert torch.equal(found.cpu(), getattr(new, use)())


@pytest.mark.parametrize("number", range(4))
def test_a_handler_may_use_the_device_that_the_program_waits_for(worker: int, number: int) -> None:
    """Each adds another constant: a graph of its own, which djinnd is not asked to admit."""
    wait, added = ("item", "much", "synchronize", "memory")[number], number + 2
    x, seen = torch.arange(4.0).to(DEVICE), list[Any]()

    def handle(number: int, frame: Any) -> None:
        os.kill(worker, signal.SIGCONT)
        seen.append((x + 1).tolist())

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with computes_nothing(worker), when_it_waits(lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            x.add_(added)
            WAITS[wait](x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    found = [one + added for one in range(4)]
    assert seen == [[one + 1 for one in found]] and x.tolist() == found


@pytest.mark.usefixtures("enabled")
def test_a_load_ends_and_the_next_one_goes_well(device_daemon: Daemon, tmp_path: Path) -> None:
    checkpoint = llama.save(tmp_path, 29)

    def load() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(checkpoint)

    standstill = no_load_goes_on(device_daemon)
    with standstill, when_it_waits(press_ctrl_c), pytest.raises(KeyboardInterrupt):
        load()
    assert load().num_parameters() > 0


ENDLESS = """
import signal, torch, djinn.torch
signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.zeros(4, device="remote_accelerator:0")
x.add_(1).tolist()
print("begins", flush=True)
input()
while True:
    x.add_(1)
    djinn.torch._device.flush()
"""


def test_a_process_ends_by_ctrl_c_while_nothing_computes(
    device_daemon: Daemon, worker: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "DJINN_HOST": device_daemon.host},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == "begins\n"
        with computes_nothing(worker):
            program.stdin.write("\n")
            program.stdin.flush()
            looks: list[str] = []

            def waits() -> bool:
                looks.append(state_of(Path(f"/proc/{program.pid}")))
                return looks[-4 * ASLEEP :] == ["S"] * 4 * ASLEEP

            wait_until(waits, "the program waits for room")
            program.send_signal(signal.SIGINT)
            _, told = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT and told.endswith("KeyboardInterrupt\n"), told
