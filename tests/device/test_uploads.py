# SPDX-License-Identifier: Apache-2.0
"""Parameters that are moved to the device: one copy of the same content, until somebody writes."""

import copy
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from forked import Program, started
from private_daemon import Daemon, running, wait_until
from torch import nn
from twins import DEVICE, expect_equal, numbers

Stats = Callable[[], dict[str, Any]]

SOURCE = """
import sys, torch
from torch import nn
import djinn.torch
from djinn.torch import _device

torch.manual_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).requires_grad_(False)
here = model(torch.ones(2, 256))
there = model.to("remote_accelerator:0")(torch.ones(2, 256)).cpu()
assert torch.equal(here, there)
stats = _device.stats()
print(stats["sealed"], stats["shared"], flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def nothing_is_open() -> None:
    """What moves while a model is open stays apart: those of earlier tests are given back first."""
    gc.collect()
    torch.zeros(1, device=DEVICE).cpu()


def guest(daemon: Daemon, seed: int) -> Program:
    return started("-c", SOURCE, str(seed), DJINN_HOST=daemon.host)


def said(one: Program) -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def shared_memory_of(pid: int) -> int:
    """Bytes of the anonymous files that a process holds open, each counted once."""
    found: dict[int, int] = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{number}"
        with suppress(OSError):
            if "memfd:" in os.readlink(link):
                state = os.stat(link)
                found[state.st_ino] = state.st_blocks * 512
    return sum(found.values())


def test_djinnd_holds_what_was_uploaded_once() -> None:
    with running() as daemon, guest(daemon, 1) as first:
        assert said(first)
        (model,) = daemon.observer.models()
        granted = daemon.status()["memory_granted_bytes"]
        wait_until(
            lambda: shared_memory_of(daemon.process.pid) < granted + model["bytes"] // 2,
            "the client's own memory is closed",
        )
        first.communicate("\n")


@pytest.mark.ci
def test_processes_that_upload_the_same_share_one_copy() -> None:
    with running() as daemon, guest(daemon, 1) as first:
        assert said(first) == "2 0", "both weights were sealed, and nobody had them"
        with guest(daemon, 1) as second, guest(daemon, 2) as other:
            assert said(second) == "2 2"
            assert said(other) == "2 0"
            assert len(daemon.observer.models()) == 2
            for one in (second, other):
                one.kill()
        first.kill()


def layer() -> nn.Linear:
    torch.manual_seed(11)
    return nn.Linear(256, 256).requires_grad_(False)


def test_writing_forks_and_what_shares_the_content_is_not_changed(stats: Stats) -> None:
    local, first, second = layer(), layer().to(DEVICE), layer().to(DEVICE)
    expect_equal(local.weight, first.weight.cpu())
    third = layer().to(DEVICE)  # of what is sealed already
    first.weight.add_(1)
    x = numbers("cpu", 3, 256)
    for one in (second, third):
        expect_equal(local(x), one(x.to(DEVICE)).cpu())
    expect_equal(local.weight + 1, first.weight.cpu())
    assert stats()["forks"] == 1
    assert (stats()["sealed"], stats()["shared"]) == (3, 2)


def test_a_parameter_written_before_it_was_needed_is_written_once() -> None:
    local, there = layer(), layer().to(DEVICE)
    there.weight.mul_(3)
    expect_equal(local.weight * 3, there.weight.cpu())
    expect_equal(local.bias, there.bias.cpu())


def test_tied_parameters_and_optimizers_see_one_tensor() -> None:
    def run(device: str) -> object:
        torch.manual_seed(13)
        model = nn.Sequential(nn.Linear(160, 160), nn.Linear(160, 160))
        model[1].weight = model[0].weight
        model.to(device)
        steps = torch.optim.AdamW(model.parameters(), 1e-2)
        losses = []
        for _ in range(3):
            steps.zero_grad()
            loss = model(numbers(device, 4, 160)).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
        assert model[1].weight is model[0].weight
        return losses, copy.deepcopy(model).cpu().state_dict()

    expect_equal(run("cpu"), run(DEVICE))


def test_small_parameters_and_other_tensors_stay_refs(stats: Stats) -> None:
    nn.Linear(8, 8).to(DEVICE)(numbers(DEVICE, 2, 8)).sum().item()
    (numbers("cpu", 300, 300).to(DEVICE) + 1).sum().item()
    assert stats()["sealed"] == 0
