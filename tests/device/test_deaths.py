# SPDX-License-Identifier: Apache-2.0
"""Processes die: a killed client leaves nothing; a killed worker changes no value."""

import functools
import os
import random
import re
import signal
import threading
from pathlib import Path

import djinn
import forked
import pytest
import torch
from private_daemon import DEADLINE_S, Daemon, running, wait_until
from test_client_kills import Baseline, expect_again, settled
from twins import DEVICE, expect_equal, numbers

GUEST = Path(__file__).parent / "guest.py"
KILLS = 6


def visit(daemon: Daemon, lines: int) -> None:
    """Starts a guest, and kills it when it has said so many lines."""
    with forked.started(str(GUEST), DJINN_HOST=daemon.host) as guest:
        assert guest.stdout is not None
        for _ in range(lines):
            assert guest.stdout.readline(), "the guest ended by itself"
        guest.kill()


@pytest.mark.ci
def test_a_client_killed_in_mid_flush_leaves_nothing() -> None:
    choose = random.Random(4)
    with running() as daemon:
        look = functools.partial(Baseline.of, daemon)
        visit(daemon, 60)  # all programs that it ever defines: djinnd keeps those
        baseline = settled(look, Baseline.alone, 100)
        for _ in range(KILLS):
            lines = choose.randrange(1, 40)
            visit(daemon, lines)
            expect_again(baseline, look, f"line {lines}", DEADLINE_S)
        assert daemon.worker()["restarts"] == 0


def kill_worker(daemon: Daemon) -> None:
    os.kill(daemon.worker_pid(), signal.SIGKILL)


def test_a_worker_killed_between_flushes_changes_no_value(device_daemon: Daemon) -> None:
    def run(device: str) -> torch.Tensor:
        value, total = numbers(device, 64, 64), torch.zeros(64, device=device)
        for step in range(12):
            value = (value @ value.t()).softmax(-1) - 0.01
            total[step:].add_(value[:, step][step:])
            if device == DEVICE:
                if step % 4 == 1:
                    (value[0, 0] + 1).item()  # progress: three deaths without it end a run
                djinn.torch._device.flush()
                if step % 4 == 1:
                    kill_worker(device_daemon)
        return total

    numbers(DEVICE, 1).sum().item()  # the first session starts the worker
    restarts = device_daemon.worker()["restarts"]
    expect_equal(run("cpu"), run(DEVICE))
    wait_until(lambda: device_daemon.worker()["restarts"] > restarts, "djinnd has seen it")


def test_a_training_step_survives_the_death_of_the_worker(device_daemon: Daemon) -> None:
    def run(device: str) -> object:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        model.to(device)
        steps, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
        for step in range(6):
            steps.zero_grad()
            loss = model(numbers(device, 4, 8)).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
            if device == DEVICE and step % 2:
                kill_worker(device_daemon)
        return losses, list(model.state_dict().values())

    expect_equal(run("cpu"), run(DEVICE))


@pytest.mark.ci
def test_dropout_draws_alike_whatever_runs_the_step_and_whenever_workers_die(
    device_daemon: Daemon,
) -> None:
    """The first curves are recorded; by the third time djinnd knows the steps as programs."""

    def curve(deaths: bool) -> list[float]:
        torch.manual_seed(5)
        layers = [torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)]
        model = torch.nn.Sequential(*layers).to(DEVICE).train()
        steps, losses = torch.optim.SGD(model.parameters(), 0.1), []
        x = numbers(DEVICE, 32, 8)
        for _ in range(8):
            steps.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
            if deaths:
                kill_worker(device_daemon)
        return losses

    first = curve(deaths=False)
    assert len(set(first)) == len(first)
    assert [curve(deaths=False) for _ in range(4)] == [first] * 4
    assert curve(deaths=True) == first


def runs_told(capfd: pytest.CaptureFixture[str]) -> list[tuple[int, ...]]:
    """Operators, those of training and those for gradients of each run since it was last asked."""
    told = re.compile(r"run of (\d+) operators, (\d+) of training, (\d+) for gradients")
    return [tuple(map(int, run)) for run in told.findall(capfd.readouterr().err)]


def test_training_is_said_in_the_graph(capfd: pytest.CaptureFixture[str]) -> None:
    weight = numbers(DEVICE, 4, 4).requires_grad_()
    weight.detach().cpu()
    djinn.set_debug_level("execution")
    try:
        (weight.tanh().sum()).backward()
        gradient = weight.grad
        assert gradient is not None
        gradient.cpu()
        trained = runs_told(capfd)
        (numbers(DEVICE, 4, 4) + 1).cpu()
    finally:
        djinn.set_debug_level("off")
    # One run or, where autograd's thread is slow to start, the forward's operators before it.
    operators, training, gradients = map(sum, zip(*trained, strict=True))
    assert training == operators > gradients > 0
    assert [run[1:] for run in runs_told(capfd)] == [(0, 0)]


def test_threads_record_and_read_at_once() -> None:
    def work(device: str, number: int) -> list[float]:
        seen, value = [], numbers(device, 16, 16) + number
        for step in range(60):
            value = (value @ value.t()).tanh() + step
            value[step % 16] *= 0.5
            if step % 5 == number % 5:
                seen.append(value.sum().item())
        return seen

    found: dict[int, list[float]] = {}

    def run(number: int) -> None:
        found[number] = work(DEVICE, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: work("cpu", number) for number in range(4)}


def is_running(daemon: Daemon) -> bool:
    return any(one["running"] for one in daemon.observer.sessions())


def test_a_run_given_up_leaves_what_it_would_have_changed_as_it_was(device_daemon: Daemon) -> None:
    """Three deaths in the same run: what it would have made is lost, and says so; nothing else is.
    (Six would end the session.)"""
    state, other = numbers(DEVICE, 600, 600), numbers(DEVICE, 5)
    view = state[3]
    read_only = state * 0.001
    (state.sum() + other.sum() + read_only.sum()).item()  # these are refs now

    value = read_only
    for _ in range(300):
        value = (value @ read_only).tanh()
    state.view(-1)[5:].add_(value.view(-1)[5:])
    djinn.torch._device.flush()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            value[0, 0].item()
        except RuntimeError as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    killed: set[int] = set()
    while reader.is_alive() and len(killed) < 5:  # a death between two tries does not count
        pid = device_daemon.worker()["pid"]
        if pid > 0 and pid not in killed and is_running(device_daemon):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    reader.join(60)
    assert failed, "the run was done before three deaths met it"
    assert "three times" in str(failed[0])
    assert "write in place is as it was" in str(failed[0])
    with pytest.raises(RuntimeError, match="three times"):
        value.cpu()
    expect_equal(numbers("cpu", 600, 600), state.cpu())
    expect_equal(numbers("cpu", 600, 600)[3], view.cpu())
    expect_equal(numbers("cpu", 5), other.cpu())
    expect_equal(numbers("cpu", 600, 600) * 0.001, read_only.cpu())
