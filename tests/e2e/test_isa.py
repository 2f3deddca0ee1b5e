# SPDX-License-Identifier: Apache-2.0
"""The instructions of djinn's own kernels: chosen by `lane.isa`, told by `djinnctl devices`."""

from pathlib import Path

import numpy as np
import torch
from command_line import ctl
from private_daemon import running
from safetensors.torch import save_file

LEVELS = ("base", "avx2", "avx512", "avx512-bf16", "amx")
GRAPH = (
    'srg 1 "product" numerics "fast-only"\nstorage weight "w"\n'
    "view %w of $0 : bfloat16[640, 896]\ninput %x : bfloat16[4, 896]\n"
    "%y = aten::linear(%x, %w)\noutput %y\n"
)


def level_and_product(path: Path, x: torch.Tensor, *options: str) -> tuple[str, torch.Tensor]:
    """What a daemon with these options says it computes with, and what comes out."""
    with running(*options) as daemon, daemon.connect("isa") as session:
        program = session.define(GRAPH, session.load(path))
        y = program(x=x.view(torch.uint16).numpy())["y"]
        (device,) = ctl(daemon, "devices", "-j").items()
        return device["isa"], torch.from_numpy(np.array(y)).view(torch.bfloat16)


def test_kernels_of_each_level_that_the_machine_has_compute_and_are_named(tmp_path: Path) -> None:
    torch.manual_seed(1)
    w, x = torch.randn(640, 896).bfloat16(), torch.randn(4, 896).bfloat16()
    path = tmp_path / "w.safetensors"
    save_file({"w": w}, path)
    best, product = level_and_product(path, x)
    right = x.double() @ w.double().T
    bound = 1.5 * (torch.nn.functional.linear(x, w).double() - right).norm()
    assert (product.double() - right).norm() <= bound
    for level in LEVELS[: LEVELS.index(best) + 1]:
        named, of_level = level_and_product(path, x, "--isa", level)
        assert named == level
        assert (of_level.double() - right).norm() <= bound
        if level == best:
            assert torch.equal(of_level.view(torch.int16), product.view(torch.int16))
