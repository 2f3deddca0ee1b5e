# SPDX-License-Identifier: Apache-2.0
"""Matrices that a load plan makes int8: products at each level of instructions, and what is
refused."""

from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import running
from safetensors.torch import save_file

LEVELS = ("base", "avx2", "avx512", "avx512-bf16", "amx")
ROWS, COLUMNS = 640, 896
NEAR = 0.01  # of the product's norm: weights and rows of x are rounded to a 127th of a block's


def graph(numerics: str, node: str = "aten::linear(%x, %w)") -> str:
    return (
        f'srg 1 "product" numerics "{numerics}"\nstorage weight "w.weight"\n'
        f"view %w of $0 : bfloat16[{ROWS}, {COLUMNS}]\ninput %x : bfloat16[40, {COLUMNS}]\n"
        f"%y = {node}\noutput %y\n"
    )


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {"w.weight": torch.randn(ROWS, COLUMNS).bfloat16(), "bias": torch.randn(7)}
    save_file(made, tmp_path / "w.safetensors")
    return made


def plans() -> tuple[djinn.LoadPlan, djinn.LoadPlan]:
    """Two that make the matrix int8: by what it is, and by its name."""
    piece = djinn.Piece(0, "w.weight")
    sizes = (ROWS, COLUMNS)
    named = djinn.Destination("w.weight", "bfloat16", sizes, (piece,), form="int8")
    return djinn.LoadPlan(matrices="int8"), djinn.LoadPlan((named,))


def product(session: djinn.Session, model: djinn.Model, x: torch.Tensor) -> torch.Tensor:
    program = session.define(graph("fast-only"), model)
    y = program(x=x.view(torch.uint16).numpy())["y"]
    return torch.from_numpy(np.array(y)).view(torch.bfloat16)


def test_products_with_int8_are_near_at_each_level_that_the_machine_has(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    x = torch.randn(40, COLUMNS).bfloat16()
    right = x.double() @ tensors["w.weight"].double().T
    levels = list(LEVELS)
    for level in LEVELS:
        if level not in levels:
            continue
        with running("--isa", level) as daemon, daemon.connect("int8") as session:
            (device,) = ctl(daemon, "devices", "-j").items()
            if device["isa"] != level:
                levels = levels[: levels.index(level)]
                continue
            found = [
                product(session, session.load(tmp_path / "w.safetensors", plan), x)
                for plan in plans()
            ]
            assert torch.equal(found[0].view(torch.int16), found[1].view(torch.int16))
            assert (found[0].double() - right).norm() <= NEAR * right.norm(), level


def test_what_is_not_computed_with_int8_is_an_error_that_says_why(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    with running() as daemon, daemon.connect("int8") as session:
        path = tmp_path / "w.safetensors"
        model = session.load(path, plans()[0])
        with pytest.raises(djinn.RequestError, match=r"are int8.*numerics fast") as refused:
            session.define(graph("exact"), model)
        assert refused.value.code == "unsupported"
        with pytest.raises(djinn.RequestError, match=r"Node 0, aten::neg, reads the weight w\.wei"):
            session.define(graph("fast", "aten::neg(%w)"), model)
        vector = djinn.Destination("b", "float32", (7,), (djinn.Piece(0, "bias"),), form="int8")
        with pytest.raises(djinn.RequestError, match="is to be int8 and is no matrix"):
            session.load(path, djinn.LoadPlan((vector,)))
        for name in ("int4", ""):
            with pytest.raises(ValueError, match=f'"int8" or None, not {name!r}'):
                session.load(path, djinn.LoadPlan(matrices=name))
            unknown = djinn.Destination("b", "float32", (7,), (), form=name)
            with pytest.raises(ValueError, match=f'"int8" or None, not {name!r}'):
                session.load(path, djinn.LoadPlan((unknown,)))
        both = djinn.LoadPlan(plans()[1].destinations, matrices="int8")
        told = "Give the form to the destinations"
        with pytest.raises(djinn.RequestError, match=told) as refused:
            session.load(path, both)
        assert refused.value.code == "invalid_argument"
        (shown,) = ctl(daemon, "ps", "-j").items()
        (dtypes, _) = ctl(daemon, "show", shown["id"], "-j").items()[0]["dtypes"]
        assert dtypes["dtype"] == "int8"
        assert dtypes["bytes"] < 0.55 * 2 * ROWS * COLUMNS
