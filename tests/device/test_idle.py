# SPDX-License-Identifier: Apache-2.0
"""What was recorded is handed over when nothing more comes for a while, by a thread that otherwise
sleeps, asks nobody and outlives nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import forked
import torch
from alone import run_alone
from private_daemon import Daemon, wait_until
from twins import DEVICE, expect_equal, numbers

LONG_S = 0.15  # several times as long as the thread waits


def device_stats() -> dict[str, int]:
    from djinn.torch import _device

    return _device.stats()


def idle_flushes() -> int:
    return device_stats()["idle_flushes"]


def watcher() -> Path:
    """The thread, as the kernel shows it."""
    tasks = Path("/proc/self/task").iterdir()
    (found,) = (task for task in tasks if (task / "comm").read_text().strip() == "djinn-idle")
    return found


def switches(task: Path) -> list[str]:
    return [line for line in (task / "status").read_text().splitlines() if "_ctxt_" in line]


def pass_time() -> None:
    """Without sleeping: the lock, and the GIL, stay in use."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        device_stats()


def test_what_is_recorded_runs_although_nobody_asks() -> None:
    numbers(DEVICE, 1).sum().item()  # the session is there
    before = idle_flushes()
    value = numbers(DEVICE, 30) * 2 + 1
    wait_until(lambda: idle_flushes() > before, "it is handed over")
    reads = device_stats()["flushes"]
    expect_equal(numbers("cpu", 30) * 2 + 1, value.cpu())
    assert device_stats()["flushes"] == reads, "nothing was left to hand over"


def test_what_is_held_is_handed_over_after_it_was_released() -> None:
    from djinn.torch import _device

    numbers(DEVICE, 1).sum().item()
    _device.hold()
    try:
        before = device_stats()["flushes"]
        value = numbers(DEVICE, 30) * 3
        pass_time()
        assert device_stats()["flushes"] == before
    finally:
        _device.release_hold()
    wait_until(lambda: device_stats()["flushes"] > before, "it is handed over")
    expect_equal(numbers("cpu", 30) * 3, value.cpu())


def test_the_thread_sleeps_while_there_is_nothing_to_do() -> None:
    before = idle_flushes()
    value = numbers(DEVICE, 30) * 2
    wait_until(lambda: idle_flushes() > before, "it is handed over")
    thread = watcher()
    seen: list[list[str]] = []

    def is_still() -> bool:
        seen.append(switches(thread))
        pass_time()
        return switches(thread) == seen[-1]

    wait_until(is_still, "it wakes no more")
    assert value.shape == (30,)


def test_steps_in_place_are_run_once_each() -> None:
    def run(device: str) -> torch.Tensor:
        total = torch.zeros(8, device=device)
        for step in range(40):
            total.add_(step).mul_(1.01)
            if device == DEVICE and step % 8 == 0:
                before = idle_flushes()
                wait_until(lambda before=before: idle_flushes() > before, "it is handed over")
        return total

    expect_equal(run("cpu"), run(DEVICE))


LEAVE = """
import torch, djinn.torch
x = torch.ones(4, device="remote_accelerator:0")
print((x + 1).sum().item())
y = x * 3  # left in the log
"""

FORK = """
import os, torch, djinn.torch
x = torch.ones(4, device="remote_accelerator:0")
x.sum().item()
y = x * 3
child = os.fork()
if child == 0:
    try:
        y.cpu()
    except RuntimeError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), y.sum().item())
"""

FORK_SHOWN = """
import multiprocessing, multiprocessing.pool, os, djinn, torch

djinn.enable()
x = torch.ones(4, device=djinn.torch.device)
x.sum().item()

def of_the_device(_):
    return x * 3

with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.map_async(of_the_device, [1]).get(40)
    except multiprocessing.pool.MaybeEncodingError as error:
        print("of the process that this one was forked from" in str(error), flush=True)
child = os.fork()
if child == 0:
    print(x, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(x)
"""

FORK_FIRST = """
import os, torch, djinn.torch
x = torch.ones(4, device="remote_accelerator:0") * 3
child = os.fork()
total = (x + 1).sum().item()
if child == 0:
    os._exit(int(total))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), total)
"""


def test_a_process_ends_with_operators_in_its_log(device_daemon: Daemon) -> None:
    for _ in range(3 if forked.ANEW else 1):
        command = [sys.executable, "-c", LEAVE]
        environment = {**os.environ, "DJINN_HOST": device_daemon.host}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "8.0\n"), done.stderr


def test_the_child_of_a_fork_is_told_that_it_has_no_session(device_daemon: Daemon) -> None:
    assert run_alone(device_daemon, FORK) == "7 12.0\n"


def test_a_tensor_is_shown_and_not_waited_for_in_the_child_of_a_fork(
    device_daemon: Daemon,
) -> None:
    """A pool shows the result that it cannot send."""
    said = " ".join(run_alone(device_daemon, FORK_SHOWN).split())
    gone = "<in djinnd, of the process that this one was forked from>, size=(4,)"
    where = "device='remote_accelerator:0')"
    assert said == f"True tensor({gone}, {where} tensor([1., 1., 1., 1.], {where}"


def test_a_fork_before_the_first_value_has_a_session_of_its_own(device_daemon: Daemon) -> None:
    assert run_alone(device_daemon, FORK_FIRST) == "16 16.0\n"


INTERRUPTED = """
import os, signal, socket, sys, tempfile, torch, djinn.torch

def interrupt(*_):
    try:
        x.cpu()
    except RuntimeError as error:
        print("handler" in str(error))
    raise Interrupted

class Interrupted(Exception):
    pass

there = os.environ["DJINN_HOST"]
with tempfile.TemporaryDirectory() as directory, socket.socket(
    socket.AF_UNIX, socket.SOCK_SEQPACKET
) as silent:
    silent.bind(f"{directory}/silent")
    silent.listen()
    os.environ["DJINN_HOST"] = f"unix:{directory}/silent"
    x = torch.ones(4, device="remote_accelerator:0") * 3
    signal.signal(signal.SIGALRM, interrupt)
    for use in x.cpu, djinn.torch._device.flush:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            use()
        except Interrupted:
            print("interrupted")
os.environ["DJINN_HOST"] = there
print((torch.ones(4, device="remote_accelerator:0") * 3).sum().item())
"""


def test_a_signal_ends_a_wait_for_a_djinnd_that_does_not_answer(device_daemon: Daemon) -> None:
    assert run_alone(device_daemon, INTERRUPTED) == "True\ninterrupted\n" * 2 + "12.0\n"


CHILD_STAYS = """
import os, torch, djinn.torch
torch.ones(4, device="remote_accelerator:0").sum().item()
if os.fork() == 0:
    os.read(0, 1)  # until the test says so
os._exit(0)
"""


def test_a_child_does_not_keep_the_lease_of_its_parent_s_device(device_daemon: Daemon) -> None:
    with forked.started("-c", CHILD_STAYS, DJINN_HOST=device_daemon.host) as parent:
        assert parent.wait(60) == 0
        wait_until(
            lambda: parent.pid not in {one["pid"] for one in device_daemon.observer.sessions()},
            "the session has ended",
        )
