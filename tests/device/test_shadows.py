# SPDX-License-Identifier: Apache-2.0
"""Small integers have a copy in this process: it is never another value than the device's."""

import pytest
import torch
from programs import Program
from twins import DEVICE, bits, expect_equal, integers, numbers

PROGRAMS, STEPS = 200, 30


@pytest.mark.parametrize("first", range(0, PROGRAMS, 50))
def test_random_programs_have_the_values_of_the_cpu(first: int) -> None:
    for seed in range(first, first + 50):
        here, there = Program(seed, "cpu").run(STEPS), Program(seed, DEVICE).run(STEPS)
        for number, (a, b) in enumerate(zip(here, there, strict=True)):
            same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
            assert same, f"seed {seed}, value {number}: {a} on the CPU, {b} on the device"


def test_what_is_computed_beside_is_computed_there_too() -> None:
    """A view as bytes beside a float operand makes the device say what it holds."""
    for seed in range(20):
        program = Program(seed, DEVICE)
        for value in program.run(STEPS):
            del value
        unknown = (torch.zeros(1, device=DEVICE) * numbers(DEVICE, 1)).sum()
        for tensor in program.pool:
            if tensor.dtype == torch.float32 or tensor.numel() == 0:
                continue
            asked = tensor.double() + unknown.double()
            expect_equal(tensor.cpu().double(), asked.cpu())


def test_known_integers_cost_no_round_trip(stats) -> None:  # noqa: ANN001
    ids = torch.tensor([[5, 7, 0]], device=DEVICE)
    mask = ids != 0
    positions = mask.long().cumsum(-1) - 1
    assert positions.tolist() == [[0, 1, 1]]
    assert not bool(mask.all())
    assert int((ids == 7).nonzero_static(size=1)[0, 1]) == 1
    assert stats()["reads"] == 0
    assert stats()["flushes"] == stats()["idle_flushes"]
    assert stats()["shadow_reads"] > 0


def test_what_depends_on_float_data_is_asked_for(stats) -> None:  # noqa: ANN001
    ids = integers(DEVICE, 6)
    ids[numbers(DEVICE, 6).argmax()] = 100
    assert int(ids.max()) == 100
    assert stats()["reads"] == 1
    ids.fill_(3)
    assert ids.tolist() == [3] * 6
