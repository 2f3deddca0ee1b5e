# SPDX-License-Identifier: Apache-2.0
"""What does not work says so, at once where it can: the CPU's exceptions for wrong arguments, and
for what djinnd does not offer a sentence with what, why and what next."""

from collections.abc import Callable

import djinn
import forked
import pytest
import torch
import torch.nn.functional as F
from private_daemon import Daemon, wait_until
from torch import nn
from twins import DEVICE, expect_equal, integers, numbers

MISTAKES: dict[str, Callable[[str], object]] = {
    "product of other shapes": lambda d: numbers(d, 3, 4) @ numbers(d, 3, 4),
    "sum of other shapes": lambda d: numbers(d, 3) + numbers(d, 4),
    "in-place sum that would grow": lambda d: numbers(d, 3).add_(numbers(d, 2, 3)),
    "view of another size": lambda d: numbers(d, 3).view(4),
    "view across strides": lambda d: numbers(d, 3, 4).t().view(12),
    "reshape to another size": lambda d: numbers(d, 3).reshape(2, 2),
    "dimension out of range": lambda d: numbers(d, 3).sum(2),
    "index out of range": lambda d: numbers(d, 3)[5],
    "select out of range": lambda d: numbers(d, 3).select(0, 7),
    "cat of other shapes": lambda d: torch.cat([numbers(d, 2, 3), numbers(d, 2, 4)]),
    "float index": lambda d: numbers(d, 3)[numbers(d, 2)],
    "linear of other features": lambda d: F.linear(numbers(d, 3, 4), numbers(d, 5, 6)),
    "convolution of other channels": lambda d: F.conv2d(
        numbers(d, 1, 3, 8, 8), numbers(d, 4, 2, 3, 3)
    ),
    "embedding of floats": lambda d: F.embedding(numbers(d, 2), numbers(d, 3, 4)),
    "layer norm of another shape": lambda d: F.layer_norm(numbers(d, 3, 4), (5,)),
    "item of several": lambda d: numbers(d, 3).item(),
    "truth of several": lambda d: bool(numbers(d, 3)),
    "in-place sum to integers": lambda d: integers(d, 3).add_(1.5),
    "write to a leaf": lambda d: numbers(d, 3).requires_grad_().add_(1),
    "write to overlapping rows": lambda d: numbers(d, 1).expand(4).add_(1),
    "write over half an operand": lambda d: (lambda a: a[1:].add_(a[:-1]))(numbers(d, 4)),
    "negative size": lambda d: torch.zeros(-1, device=d),
    "as_strided outside": lambda d: numbers(d, 4).as_strided((5,), (1,)).sum(),
    "state of another shape": lambda d: (
        nn.Linear(2, 2).to(d).load_state_dict(nn.Linear(3, 2).state_dict())
    ),
    "expand of a size": lambda d: numbers(d, 3).expand(4),
    "unknown einsum": lambda d: torch.einsum("ij,jk->ik", numbers(d, 2, 3), numbers(d, 2, 3)),
    "backward of many": lambda d: numbers(d, 3).requires_grad_().exp().backward(),
    "topk of too many": lambda d: numbers(d, 3).topk(4),
    "gather of another rank": lambda d: numbers(d, 3).gather(0, integers(d, 1, 1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_arguments_raise_what_they_raise_on_the_cpu(mistake: str) -> None:
    with pytest.raises(Exception) as here:
        MISTAKES[mistake]("cpu")
    with pytest.raises(Exception) as there:
        MISTAKES[mistake](DEVICE)
    assert there.type is here.type, there.value
    expect_equal(torch.full((2,), 3.0), torch.full((2,), 3.0, device=DEVICE))


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "numpy()": (lambda: numbers(DEVICE, 3).numpy(), TypeError, "cpu"),
    "pin_memory()": (lambda: numbers(DEVICE, 3).pin_memory(), RuntimeError, "pin"),
    "pinned factory": (lambda: torch.empty(3, device=DEVICE, pin_memory=True), RuntimeError, "pin"),
    "sparse": (lambda: numbers(DEVICE, 3, 3).to_sparse(), NotImplementedError, r"\.cpu\(\)"),
    "an operator that is not offered": (
        lambda: F.ctc_loss(
            numbers(DEVICE, 5, 1, 4).log_softmax(2),
            integers("cpu", 1, 2).abs().to(DEVICE),
            (5,),
            (2,),
        ),
        NotImplementedError,
        r"_ctc_loss is not offered.*graph.*\.cpu\(\)",
    ),
    "growing what holds values": (
        lambda: (numbers(DEVICE, 3) * 1).resize_(30),
        NotImplementedError,
        "Make a larger",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_what_and_what_next(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()


NUMBERED: dict[str, Callable[[str], object]] = {
    "zeros": lambda d: torch.zeros(2, device=d),
    "empty": lambda d: torch.empty(2, device=d),
    "tensor": lambda d: torch.tensor([1, 2], device=d),
    "arange": lambda d: torch.arange(3, device=d),
    "randn": lambda d: torch.randn(3, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "to": lambda d: torch.ones(2).to(d),
    "to from the device": lambda d: numbers(DEVICE, 2).to(d),
    "module": lambda d: nn.Linear(2, 2).to(d),
    "generator": lambda d: torch.Generator(device=d),
    "set_device": lambda d: torch.remote_accelerator.set_device(d),
    "device": lambda d: torch.remote_accelerator.device(d),
}


def test_a_device_is_made_of_a_number() -> None:
    with pytest.raises(TypeError, match=r"djinn.device\(\) is given a number, .* not 'cuda'"):
        djinn.device("cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no number 1"):
        djinn.device(1)


@pytest.mark.parametrize("what", NUMBERED)
def test_there_is_one_device(what: str) -> None:
    torch.ones(1, device=DEVICE).sum().item()
    NUMBERED[what](DEVICE)
    with pytest.raises(ValueError, match=r"one device, number 0; there is no number 3"):
        NUMBERED[what]("remote_accelerator:3")


def test_an_error_of_the_worker_is_told_to_who_reads_and_to_nobody_later() -> None:
    table, rows = numbers(DEVICE, 4, 2), numbers(DEVICE, 1).mul(0).add(9).long()
    torch.remote_accelerator.synchronize()
    looked_up = F.embedding(rows, table)
    with pytest.raises(RuntimeError, match="earlier operator failed in djinnd: aten::"):
        looked_up.cpu()
    expect_equal(numbers("cpu", 4, 2), table.cpu())
    expect_equal(numbers("cpu", 4, 2) + 1, (table + 1).cpu())


def test_a_failed_run_that_wrote_one_ref_twice_kills_nobody(device_daemon: Daemon) -> None:
    numbers(DEVICE, 1).sum().item()  # the first session starts the worker
    before = device_daemon.worker()
    child = """
import torch, djinn.torch
d = djinn.torch.device
a, rows = torch.zeros(4, device=d) + 1, torch.ones(1, device=d)
torch.remote_accelerator.synchronize()
a[0] += 1
a[1] += 1
torch.nn.functional.embedding((rows * 9).long(), torch.ones(4, 2, device=d) * 2).cpu()
"""
    done = forked.run("-c", child)
    assert "earlier operator failed" in done.stderr
    wait_until(lambda: device_daemon.status()["sessions"] <= 2, "the child's session is gone")
    expect_equal(torch.ones(3), torch.ones(3, device=DEVICE).mul(1).cpu())
    after = device_daemon.worker()
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


def test_ten_thousand_refused_runs_leave_staging_and_refs_free() -> None:
    """They have no slots for their refs. The graph of each, of 24 operators, was in staging by
    then: all of these graphs together are more than the slab."""
    child = """
import torch, djinn.torch
few = torch.ones(4).to(djinn.torch.device)

def hold_as_many_as_can_be():
    held = []
    try:
        while True:
            held += [few.add(i) for i in range(24)]
            torch.remote_accelerator.synchronize()
    except RuntimeError as error:
        assert "as many refs as it can" in str(error), error
    return held

held = hold_as_many_as_can_be()
for i in range(10_000):
    try:
        few.mul(i).cpu()
        raise SystemExit("it was not refused")
    except RuntimeError as error:
        assert "as many refs as it can" in str(error), (i, error)
many = len(held)
held.clear()
assert len(hold_as_many_as_can_be()) == many
"""
    done = forked.run("-c", child)
    assert done.returncode == 0, done.stderr


def test_without_a_daemon_the_first_value_says_so() -> None:
    child = "import torch, djinn.torch; x = torch.ones(3, device=djinn.torch.device) * 2; print(x)"
    done = forked.run("-c", child, DJINN_HOST="unix:/nonexistent/djinnd.sock")
    assert done.returncode == 1
    assert "djinnd" in done.stderr.splitlines()[-1], done.stderr


def test_a_division_that_traps_is_an_error_where_its_integers_are_known_here() -> None:
    child = """
import torch, djinn.torch
least = torch.tensor([torch.iinfo(torch.int64).min]).to(djinn.torch.device)
try:
    torch.div(least, -torch.ones_like(least), rounding_mode="trunc").cpu()
except Exception as error:
    print(error)
"""
    done = forked.run("-c", child)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "divided by -1" in done.stdout


def test_a_host_that_is_no_address_is_told_with_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DJINN_HOST", "unix:")
    with pytest.raises(djinn.RequestError, match=r"In DJINN_HOST: The host 'unix:' has no form"):
        djinn.connect()
