# SPDX-License-Identifier: Apache-2.0
"""torch.save and pickle of what is in djinnd: the files are the CPU's, and load on either side."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from twins import DEVICE, expect_equal, numbers, same


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.tensor(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


def tied(device: str) -> Tied:
    torch.manual_seed(3)
    return Tied().to(device)


def optimized(device: str, steps: int = 2) -> tuple[Tied, torch.optim.Optimizer]:
    model = tied(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    train(model, optimizer, steps)
    return model, optimizer


def train(model: Tied, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    ids = torch.arange(5).to(model.count.device)
    losses = []
    for _ in range(steps):
        loss = model(ids).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def checkpoint(device: str) -> dict[str, Any]:
    model, optimizer = optimized(device)
    return {"model": model.state_dict(), "opt": optimizer.state_dict(), "step": 3}


SAVED: dict[str, Callable[[str], Any]] = {
    "a tensor": lambda d: numbers(d, 3, 4),
    "bfloat16": lambda d: numbers(d, 7, dtype=torch.bfloat16),
    "bool": lambda d: numbers(d, 7) > 0,
    "nothing": lambda d: torch.empty(0, 3, device=d),
    "a number": lambda d: torch.tensor(2.5, device=d),
    "a parameter": lambda d: nn.Parameter(numbers(d, 3)),
    "a frozen parameter": lambda d: nn.Parameter(numbers(d, 3), requires_grad=False),
    "a leaf": lambda d: numbers(d, 3).requires_grad_(),
    "views": lambda d: (lambda a: [a, a[1], a.t(), a[:, 1:3]])(numbers(d, 3, 4)),
    "what is computed": lambda d: numbers(d, 3, 4).exp().sum(0),
    "a model's state": lambda d: tied(d).state_dict(),
    "an optimizer's state": lambda d: optimized(d)[1].state_dict(),
    "a checkpoint": checkpoint,
}


def saved(what: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("what", SAVED)
def test_a_file_is_the_one_that_the_cpu_writes(what: str) -> None:
    files = [saved(SAVED[what](device)) for device in ("cpu", DEVICE)]
    assert files[0].getvalue() == files[1].getvalue()
    expect_equal(*map(torch.load, files))


@pytest.mark.parametrize("what", SAVED)
@pytest.mark.parametrize(
    "carry",
    [
        lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: torch.load(saved(one, _use_new_zipfile_serialization=False)),
    ],
    ids=["pickle", "the old format"],
)
def test_other_ways_give_the_same(what: str, carry: Callable[[Any], Any]) -> None:
    given, found = SAVED[what]("cpu"), carry(SAVED[what](DEVICE))
    expect_equal(carry(given), found)
    for one in torch.utils._pytree.tree_leaves(found):
        assert not isinstance(one, torch.Tensor) or one.device.type == "cpu"


def test_what_shares_bytes_shares_them_in_a_file() -> None:
    whole, row, other = torch.load(saved((lambda a: (a, a[1], a * 1))(numbers(DEVICE, 3, 4))))
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert other.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    state = torch.load(saved(tied(DEVICE).state_dict()))
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()


def test_a_module_is_saved_whole_and_is_on_the_cpu_then() -> None:
    for found in (
        torch.load(saved(tied(DEVICE)), weights_only=False),
        pickle.loads(pickle.dumps(tied(DEVICE))),
    ):
        assert found.head.weight is found.embedding.weight
        expect_equal(tied("cpu").state_dict(), found.state_dict())
        assert found.head.weight.device.type == "cpu" and found.head.weight.requires_grad


def test_a_copy_stays_in_djinnd() -> None:
    model = tied(DEVICE)
    other = copy.deepcopy(model)
    assert other.head.weight is other.embedding.weight
    assert other.head.weight.device == torch.device(DEVICE)
    with torch.no_grad():
        model.head.weight.zero_()
    expect_equal(tied("cpu").state_dict(), other.state_dict())


def test_a_file_is_loaded_where_there_is_no_djinn(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(DEVICE), file)
    lines = (
        "import sys, torch",
        "found = torch.load(sys.argv[1])",
        "assert not any(name.startswith('djinn') for name in sys.modules)",
        "print(found['step'], found['model']['head.weight'].device)",
    )
    told = subprocess.run(
        [sys.executable, "-I", "-c", "\n".join(lines), str(file)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.split() == ["3", "cpu"]


def test_map_location_puts_a_file_on_the_device() -> None:
    file = saved(checkpoint(DEVICE))
    found = torch.load(file, map_location=DEVICE)
    expect_equal(checkpoint("cpu"), found)
    state = found["model"]
    assert {str(one.device) for one in state.values()} == {DEVICE}
    with torch.no_grad():
        state["head.weight"][2] = 7
    expect_equal(state["head.weight"], state["embedding.weight"].cpu())


@pytest.mark.parametrize("place", [None, DEVICE])
def test_a_run_goes_on_from_a_file_as_if_it_had_not_ended(place: str | None) -> None:
    def run(device: str) -> object:
        model, optimizer = optimized(device)
        file = saved({"model": model.state_dict(), "opt": optimizer.state_dict()})
        expected = train(model, optimizer, 3)
        other, steps = optimized(device, steps=1)
        state = torch.load(file, map_location=place)
        other.load_state_dict(state["model"])
        steps.load_state_dict(state["opt"])
        assert train(other, steps, 3) == expected
        return expected, model.state_dict(), other.state_dict()

    same(run)


# In processes of their own, since holes that other tests left in the heap decide how far one grows;
# in several, since where the heap lies decides, too.
SAVE = """
import sys
from pathlib import Path

import torch
import djinn.torch

COUNT, SIZE, FILE = 24, 8 << 20, sys.argv[1]


def bytes_of(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


tensors = {
    str(i): torch.full((SIZE // 4,), i + 0.5, device=djinn.torch.device) for i in range(COUNT)
}
torch.save(tensors["0"].clone(), FILE)
Path("/proc/self/clear_refs").write_text("5")  # the most is what there is now
before = bytes_of("VmRSS")
torch.save(tensors, FILE)
print(bytes_of("VmHWM") - before, SIZE)
"""


@pytest.mark.parametrize(
    "attempt", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 3))]
)
def test_saving_takes_memory_for_one_tensor_at_a_time(attempt: int, tmp_path: Path) -> None:
    file = tmp_path / "all.pt"
    told = subprocess.run(
        [sys.executable, "-c", SAVE, str(file)], check=True, capture_output=True, text=True
    )
    most, size = map(int, told.stdout.split())
    assert most < 2 * size
    for name, one in torch.load(file, mmap=True).items():
        assert one[0] == one[-1] == int(name) + 0.5
