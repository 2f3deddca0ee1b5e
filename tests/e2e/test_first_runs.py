# SPDX-License-Identifier: Apache-2.0
"""What a bucket's first run asks for before it begins is what it then holds, through a worker."""

from pathlib import Path

import pytest
import torch
from command_line import ctl
from private_daemon import running
from safetensors.torch import save_file

MIB = 1 << 20
HEAP_STEP = 4 * MIB  # in which a lane's heap grows (daemon/worker/heap.cc)
TOKENS, WIDTH, HIDDEN, LAYERS = 2048, 256, 4096, 2


def graph(dtype: str, numerics: str) -> str:
    """Layers that hold several products' results at once."""
    lines = [f'srg 1 "layers" numerics "{numerics}"', f"symbol tokens 1..{TOKENS} tokens"]
    for name, sizes in (("up", f"{HIDDEN}, {WIDTH}"), ("down", f"{WIDTH}, {HIDDEN}")):
        lines.append(f'weight %{name} "{name}" : {dtype}[{sizes}]')
    lines.append(f"input %x0 : {dtype}[tokens, {WIDTH}]")
    for i in range(LAYERS):
        lines += [
            f"%h{i} = aten::linear(%x{i}, %up)",
            f"%e{i} = aten::exp(%h{i})",
            f"%m{i} = aten::mul.Tensor(%e{i}, %h{i})",
            f"%y{i} = aten::linear(%m{i}, %down)",
            f"%x{i + 1} = aten::add.Tensor(%x{i}, %y{i})",
        ]
    return "\n".join([*lines, f"output %x{LAYERS}\n"])


@pytest.mark.ci
@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_first_run_is_granted_what_it_holds_and_asks_once(
    tmp_path: Path, dtype: str, numerics: str
) -> None:
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    weights = {
        "up": (torch.randn(HIDDEN, WIDTH) / WIDTH).to(kind),
        "down": (torch.randn(WIDTH, HIDDEN) / HIDDEN).to(kind),
    }
    save_file(weights, tmp_path / "model.safetensors")
    x = torch.randn(TOKENS, WIDTH).to(kind)
    given = x.numpy() if dtype == "float32" else x.view(torch.uint16).numpy()
    with running() as daemon, daemon.connect("first", staging_bytes=64 * MIB) as session:
        program = session.define(
            graph(dtype, numerics), session.load(tmp_path / "model.safetensors")
        )
        program(x0=given)
        worker, status = daemon.worker(), daemon.status()
        (device,) = ctl(daemon, "devices", "-j").items()
        granted = status["memory_lanes_bytes"] - device["planned_bytes"]
        held = worker["slab_bytes"]
        # It begins again once, with the memory that it asked for before it computed anything.
        assert worker["runs_repeated"] <= 1 and worker["plan_misses"] == 0
        assert held >= 8 * HEAP_STEP, "so little that it says nothing"
        assert held <= granted <= 1.3 * held + HEAP_STEP + given.nbytes
