# SPDX-License-Identifier: Apache-2.0
"""An operator that fails while djinnd computes, long after it was called: what was called before it
has happened, as on the CPU; what was called after it, until the error is raised, has not."""

from collections.abc import Callable
from typing import Any

import djinn
import forked
import pytest
import torch
import torch.nn.functional as F
from private_daemon import Daemon
from torch import nn
from twins import DEVICE, expect_equal, numbers


def flush() -> None:
    djinn.torch._device.flush()


def settle() -> None:
    torch.remote_accelerator.synchronize()  # type: ignore[attr-defined]


def far(device: str) -> torch.Tensor:
    """An index beyond all tensors here, which no shadow tells: floats made it."""
    return numbers(device, 2).mul(0).add(99).long()


def singular(device: str) -> torch.Tensor:
    return numbers(device, 3, 3).mul(0)


# Each fails on the CPU, and its shapes are right.
FAILURES: dict[str, Callable[[str], Any]] = {
    "embedding": lambda d: F.embedding(far(d), numbers(d, 4, 2)),
    "gather": lambda d: numbers(d, 4).gather(0, far(d)),
    "index_select": lambda d: numbers(d, 4).index_select(0, far(d)),
    "index": lambda d: numbers(d, 4)[far(d)],
    "take": lambda d: numbers(d, 4).take(far(d)),
    "scatter": lambda d: numbers(d, 4).scatter(0, far(d), 1.0),
    "scatter_add": lambda d: numbers(d, 4).scatter_add(0, far(d), numbers(d, 2)),
    "index_add": lambda d: numbers(d, 4).index_add(0, far(d), numbers(d, 2)),
    "index_copy": lambda d: numbers(d, 4).index_copy(0, far(d), numbers(d, 2)),
    "index_fill": lambda d: numbers(d, 4).index_fill(0, far(d), 1.0),
    "index_put": lambda d: numbers(d, 4).index_put((far(d),), numbers(d, 2)),
    "nll_loss": lambda d: F.nll_loss(numbers(d, 2, 4), far(d)),
    "cross_entropy": lambda d: F.cross_entropy(numbers(d, 2, 4), far(d)),
    "inverse": lambda d: torch.linalg.inv(singular(d)),
    "solve": lambda d: torch.linalg.solve(singular(d), numbers(d, 3)),
    "cholesky": lambda d: torch.linalg.cholesky(singular(d)),
    "multinomial": lambda d: numbers(d, 4).abs().neg().multinomial(2),
    "division by zero": lambda d: far(d) // far(d).mul(0),
    "remainder of zero": lambda d: far(d) % far(d).mul(0),
}


class World:
    """Tensors of all sorts, as a program has them: whole ones, views, leaves, a model's."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.whole = numbers(device, 6, 4) * 1
        self.rows = self.whole[2:5]
        self.column = self.whole.t()[1]
        self.zeros = torch.zeros(5, device=device)
        self.late_zeros = torch.zeros_like(self.whole)
        self.sent = numbers(device, 3)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.leaf = numbers(device, 4, 4).requires_grad_()
        (self.leaf * 2).sum().backward()
        self.weight = nn.Parameter(numbers("cpu", 160, 160)).to(device)
        self.made: list[torch.Tensor] = []

    def go_on(self) -> None:
        """In place, on views, on what is new, and by autograd."""
        self.whole.add_(1)
        self.made.append(self.rows * 2)
        self.rows.mul_(self.column[0])
        self.column[1:].sub_(self.sent[0])
        self.zeros[1:3] += 4
        self.sent.mul_(3)
        self.count += 1
        (self.leaf @ self.leaf).square().sum().backward()
        with torch.no_grad():
            self.weight.mul_(0.5)
            self.leaf += self.leaf.grad * 0.01 if self.leaf.grad is not None else 0
        self.made.append(self.made[-1].exp() + self.leaf.detach()[0])

    def all(self) -> list[torch.Tensor]:
        kept = [self.whole, self.rows, self.column, self.zeros, self.late_zeros, self.sent]
        kept += [self.count, self.leaf, self.weight, *self.made]
        return [*kept, self.leaf.grad] if self.leaf.grad is not None else kept


def expect_failure(look: Callable[[], object], match: str | None = None) -> None:
    with pytest.raises(RuntimeError, match=match):
        look()


def fail_on_cpu(fail: Callable[[str], Any], before: int) -> World:
    world = World("cpu")
    for _ in range(before):
        world.go_on()
    with pytest.raises((RuntimeError, IndexError)):
        fail("cpu")
    return world


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("failure", FAILURES)
def test_what_was_called_before_has_happened_and_what_was_called_after_has_not(
    failure: str, place: str
) -> None:
    fail = FAILURES[failure]
    before, after = int(place != "first"), int(place != "last")
    expected = fail_on_cpu(fail, before)
    world = World(DEVICE)
    if place == "first":
        settle()
    for _ in range(before):
        world.go_on()
    kept = len(world.made)
    try:
        lost = [fail(DEVICE)]
    except torch.linalg.LinAlgError:  # PyTorch looks at once whether it was solved
        lost = []
    else:
        for _ in range(after):
            world.go_on()
            world.late_zeros.add_(1)
        expect_failure(lost[0].cpu, "earlier operator failed in djinnd: (aten|djinn)::")
        lost += world.made[kept:]
        del world.made[kept:]
    expect_equal(expected.all(), world.all())
    for one in lost:
        expect_failure(one.cpu, "not computed, because an earlier operator failed in djinnd: ")
        expect_failure(lambda one=one: one + 1, "earlier operator failed in djinnd: ")
    expected.go_on()
    world.go_on()
    expect_equal(expected.all(), world.all())


@pytest.mark.parametrize("settled", [False, True])
def test_it_is_the_same_however_the_program_is_cut_into_runs(settled: bool) -> None:
    expected = fail_on_cpu(FAILURES["gather"], 2)
    world = World(DEVICE)
    for _ in range(2):
        world.go_on()
        flush()
    if settled:
        settle()
    bad = FAILURES["gather"](DEVICE)
    kept = len(world.made)
    for _ in range(3):
        flush()
        world.go_on()
        world.late_zeros.add_(1)
    late, world.made = world.made[kept:], world.made[:kept]
    expect_failure(bad.cpu)
    expect_equal(expected.all(), world.all())
    for lost in late:
        expect_failure(lost.cpu)


LOOKS: dict[str, Callable[[World], object]] = {
    "a value that has nothing to do with it": lambda w: w.sent.cpu(),
    "a value that is written behind it": lambda w: w.whole.cpu(),
    "an item": lambda w: w.sent[0].item(),
    "synchronize": lambda w: settle(),
    "a shape that depends on data": lambda w: w.sent.nonzero(),
    "a branch": lambda w: bool(w.sent[0] > 0),
}


@pytest.mark.parametrize("look", LOOKS)
def test_the_first_look_raises_and_the_next_does_not(look: str) -> None:
    expected = fail_on_cpu(FAILURES["embedding"], 1)
    world = World(DEVICE)
    world.go_on()
    bad = FAILURES["embedding"](DEVICE)
    world.whole.add_(7)
    expect_failure(lambda: LOOKS[look](world), "aten::embedding")
    LOOKS[look](world)
    expect_equal(expected.all(), world.all())
    expect_failure(bad.cpu, "aten::embedding")


def test_an_operator_that_would_write_and_fails_has_written_nothing() -> None:
    state, index = numbers(DEVICE, 6), far(DEVICE)
    settle()
    state.add_(1)
    state.index_put_((index,), numbers(DEVICE, 2))
    expect_failure(state.cpu, "index_put_")
    expect_equal(numbers("cpu", 6) + 1, state.cpu())
    local = numbers(DEVICE, 6) * 2  # made in the same run
    local.index_add_(0, index, numbers(DEVICE, 2))
    expect_failure(local.cpu, "index_add_")
    expect_equal(numbers("cpu", 6) * 2, local.cpu())


def test_the_error_names_the_operator_and_its_shapes() -> None:
    bad = F.embedding(far(DEVICE), numbers(DEVICE, 4, 2))
    said = (
        r"aten::embedding \(float32 \[4, 2\], int64 \[2\]\), which gives float32 \[2, 2\], 16 B: "
    )
    said += "index out of range.* "
    said += "What was called before it has happened, what was called after it has not"
    expect_failure(bad.cpu, said)


def test_the_error_names_the_types_of_what_the_same_run_made() -> None:
    """A wrong type is what the error is about: it stands beside each of the shapes."""
    bad = torch.ones(2, 3, device=DEVICE) @ torch.ones(3, 2, device=DEVICE).double()
    expect_failure(bad.cpu, r"\(float32 \[2, 3\], float64 \[3, 2\]\), which gives .*same dtype")
    half = torch.ones(2, 3, device=DEVICE).half()
    bad = F.linear(half, torch.ones(2, 3, device=DEVICE))
    expect_failure(bad.cpu, r"aten::linear \(float16 \[2, 3\], float32 \[2, 3\]\)")


def test_two_failures_are_told_one_after_the_other() -> None:
    first, second = FAILURES["gather"](DEVICE), FAILURES["take"](DEVICE)
    expect_failure(first.cpu, "aten::gather")
    expect_failure(second.cpu, "aten::gather")
    other = FAILURES["take"](DEVICE)
    expect_failure(other.cpu, "aten::take")
    expect_failure(first.cpu, "aten::gather")


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], bool]] = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), False),
    # It counts its steps in this process: so its loss is looked at before.
    "AdamW": (lambda p: torch.optim.AdamW(p, 0.05), True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_training_whose_batch_is_wrong_leaves_model_and_optimizer_as_they_were(
    optimizer: str,
) -> None:
    make, looks_first = OPTIMIZERS[optimizer]

    def train(device: str) -> object:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(16, 4))
        model.to(device)
        steps = make(model.parameters())
        batches = [torch.tensor([[1, 2]]), torch.tensor([[3, 99]]), torch.tensor([[4, 5]])]
        losses: list[float | str] = []
        for batch in batches * 2:
            try:
                ids = batch.to(device).float().long()
                loss = F.cross_entropy(model(ids), torch.tensor([1], device=device))
                if looks_first:
                    loss.item()
                steps.zero_grad()
                loss.backward()
                steps.step()
                losses.append(loss.item())
            except (RuntimeError, IndexError):
                losses.append("failed")
        moments = [
            value for one in steps.state.values() for key, value in one.items() if key != "step"
        ]
        return losses, list(model.state_dict().values()), moments

    expect_equal(train("cpu"), train(DEVICE))


def test_a_gradient_that_is_accumulated_is_not_half_done() -> None:
    leaf = numbers(DEVICE, 5, 5).requires_grad_()
    leaf.square().sum().backward()
    settle()
    (leaf.sum() * F.nll_loss(leaf[:2], far(DEVICE))).backward()
    gradient = leaf.grad
    assert gradient is not None
    expect_failure(gradient.cpu)
    expect_equal(numbers("cpu", 5, 5) * 2, gradient.cpu())


def test_weights_that_are_shared_stay_what_they_are() -> None:
    model = nn.Linear(256, 256, bias=False).to(DEVICE)
    weight = model.weight
    before = weight.detach().cpu()
    bad = FAILURES["gather"](DEVICE)
    with torch.no_grad():
        weight.add_(1)
    flush()
    expect_failure(bad.cpu)
    expect_equal(before, weight.detach().cpu())
    with torch.no_grad():
        weight.add_(1)
    expect_equal(before + 1, weight.detach().cpu())


def test_what_is_drawn_before_a_failure_is_what_would_have_been_drawn() -> None:
    def draw(fails: bool) -> list[torch.Tensor]:
        torch.manual_seed(8)
        drawn = [torch.rand(5, device=DEVICE), F.dropout(numbers(DEVICE, 40))]
        if fails:
            expect_failure(FAILURES["gather"](DEVICE).cpu)
        return [one.cpu() for one in [*drawn, torch.randn(5, device=DEVICE)]]

    expect_equal(draw(fails=False), draw(fails=True))


def test_integers_that_are_known_here_did_not_change_either() -> None:
    def run(device: str) -> list[int]:
        count = torch.zeros(2, dtype=torch.int64, device=device)
        count += 1
        if device == DEVICE:
            bad = FAILURES["gather"](DEVICE)
            count += 5
            expect_failure(bad.cpu)
        count += 2
        return count.tolist()

    assert run("cpu") == run(DEVICE)


def test_writes_of_more_than_a_run_may_are_not_moved_across_an_operator_that_fails() -> None:
    """An optimizer's are, parameter by parameter."""

    def write(device: str) -> list[torch.Tensor]:
        large = [torch.ones(4_000_000, device=device) for _ in range(3)]
        bad = None
        for number, one in enumerate(large):
            one.add_(1)
            if number == 0 and device == DEVICE:
                bad = FAILURES["index_select"](device)
            elif number == 0:
                break
            one.mul_(3)
        if bad is not None:
            last = (bad + large[2][:2]).exp()
            expect_failure(last.cpu)
        return large

    expect_equal(write("cpu"), write(DEVICE))


def test_a_dtype_that_has_no_kernel_is_told_with_what_to_do() -> None:
    low = numbers(DEVICE, 4).to(torch.float8_e4m3fn)
    expect_failure((low + low).cpu, "not implemented for 'Float8_e4m3fn'. Convert its arguments")
    expect_equal(numbers("cpu", 4).to(torch.float8_e4m3fn).float() * 2, (low.float() * 2).cpu())


def test_a_copy_that_was_not_made_is_not_zeros_and_what_was_empty_can_be_written() -> None:
    state, empty = numbers(DEVICE, 4), torch.empty(4, device=DEVICE)
    state.add_(1)
    bad = FAILURES["gather"](DEVICE)
    late = [
        state.double(),
        state.clone(),
        state.view(2, 2).t().contiguous(),
        torch.zeros(3, device=DEVICE),
    ]
    late += [torch.empty(2, device=DEVICE).fill_(3)]
    empty.fill_(7)
    expect_failure(bad.cpu)
    for lost in late:
        expect_failure(lost.cpu, "not computed")
    empty.fill_(8)
    expect_equal(torch.full((4,), 8.0), empty.cpu())
    expect_equal((numbers("cpu", 4) + 1).double(), state.double().cpu())


def test_uploads_and_copies_from_the_cpu_around_a_failure() -> None:
    state = numbers(DEVICE, 4)
    settle()
    sent = numbers(DEVICE, 5)
    bad = FAILURES["gather"](DEVICE)
    late = numbers(DEVICE, 6)
    state.copy_(torch.ones(4))
    expect_failure(bad.cpu)
    expect_equal(numbers("cpu", 4), state.cpu())
    expect_equal([numbers("cpu", 5), numbers("cpu", 6)], [sent.cpu(), late.cpu()])


@pytest.mark.usefixtures("enabled")
def test_a_value_that_was_not_computed_is_shown_without_one() -> None:
    bad = FAILURES["gather"](DEVICE)
    settled = numbers(DEVICE, 2)
    shown = repr(bad)
    assert shown.startswith("tensor(<without a value: ") and "aten::gather" in shown, shown
    assert "size=(2,)" in shown
    expect_failure(settled.cpu, "aten::gather")  # showing it has told nobody
    assert repr(bad) == shown
    expect_equal(numbers("cpu", 2), settled.cpu())


BLOCKING = """
import torch, djinn.torch
d = djinn.torch.device
state = torch.ones(3, device=d)
try:
    state.add_(1)
    torch.nn.functional.embedding((state * 9).long(), torch.ones(4, 2, device=d))
    state.add_(1)
except RuntimeError as error:
    print(error)
print(state.tolist())
"""


def test_with_blocking_the_error_arises_where_the_operator_is_called(
    device_daemon: Daemon,
) -> None:
    done = forked.run("-c", BLOCKING, DJINN_HOST=device_daemon.host, DJINN_BLOCKING="1")
    assert done.returncode == 0, done.stderr
    said, state = done.stdout.splitlines()
    assert said.startswith("aten::embedding Float[4, 2] Long[3] failed in djinnd: "), said
    assert state == "[2.0, 2.0, 2.0]"


def test_nothing_is_repeated_or_counted_as_failed_but_what_failed(stats: Any) -> None:
    value = numbers(DEVICE, 4)
    value.add_(1)
    FAILURES["gather"](DEVICE)
    value.add_(1)
    value.cpu()
    assert stats()["failures"] == 0, "nobody needs the result of what would fail"
