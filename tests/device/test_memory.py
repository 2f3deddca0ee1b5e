# SPDX-License-Identifier: Apache-2.0
"""What a process has in djinnd, as torch.cuda would tell it; and that it is given back."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import djinn
import pytest
import torch
import transformers
from alone import run_alone
from private_daemon import Daemon, running
from twins import DEVICE

MIB = 1 << 20
KINDS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def module() -> Any:
    return torch.remote_accelerator  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    gc.collect()
    (torch.ones(1, device=DEVICE) + 1).cpu()
    module().empty_cache()
    module().reset_peak_memory_stats()


def test_tensors_are_counted_while_they_live_and_the_peak_remains() -> None:
    before = module().memory_allocated()
    value = torch.ones(8 * MIB, device=DEVICE) + 1
    assert module().memory_allocated() == before + 32 * MIB
    more = value * 2
    assert module().memory_allocated() == module().max_memory_allocated() == before + 64 * MIB
    del more
    assert module().memory_allocated() == before + 32 * MIB
    value.mul_(2)
    assert module().memory_allocated() == before + 32 * MIB
    del value
    assert module().memory_allocated() == before
    assert module().max_memory_allocated() == before + 64 * MIB
    module().reset_peak_memory_stats()
    assert module().max_memory_allocated() == before
    up = torch.ones(MIB).to(DEVICE)
    up.sum().item()
    assert module().memory_allocated() == before + 4 * MIB


@pytest.mark.usefixtures("enabled")
def test_keys_and_values_in_djinnd_are_counted() -> None:
    config = transformers.LlamaConfig(
        **{"vocab_size": 40, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512},
    )
    model = transformers.LlamaForCausalLM(config).eval().to(DEVICE)
    ids = torch.tensor([[3, 4, 5]], device=DEVICE)
    cache = transformers.DynamicCache()
    model.generate(ids, max_new_tokens=100, do_sample=False, past_key_values=cache)
    assert djinn.explain(model)["tier"] == 2, djinn.explain(model)
    with_cache = module().memory_allocated()
    del cache
    gc.collect()
    module().empty_cache()
    assert module().memory_allocated() < with_cache


def test_who_asks_for_too_many_addresses_hears_for_how_many_bytes() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"out of memory.* 8\.0 TiB"):
        torch.empty(1 << 41, device=DEVICE)


def test_a_run_beyond_the_quota_says_how_far_and_who_may_raise_it() -> None:
    """That of every session, as djinnd is configured by itself."""
    side = torch.ones(1_000_000, device=DEVICE)
    said = r"needs 3\.6 TiB for .* quota is 4\.0 GiB\. .* a larger memory\.session_quota\."
    with pytest.raises(torch.OutOfMemoryError, match=said):
        (side[:, None] * side).sum().item()


ASK_FIRST = """
import torch, djinn.torch

device = torch.remote_accelerator
free, total = device.mem_get_info()
print(0 < free <= total == device.get_device_properties(0).total_memory)
print(device.memory_allocated(), (torch.ones(4, device=djinn.torch.device) * 3).sum().item())
"""


def test_how_much_there_is_can_be_asked_before_the_first_tensor(device_daemon: Daemon) -> None:
    assert run_alone(device_daemon, ASK_FIRST) == "True\n0 12.0\n"


def test_the_device_has_a_name_and_properties() -> None:
    (torch.ones(1, device=DEVICE) + 1).cpu()
    found = module().get_device_properties(0)
    assert found.name == module().get_device_name(DEVICE) == "djinnd"
    assert found.total_memory == module().mem_get_info()[1]
    with pytest.raises(ValueError, match="no number 1"):
        module().get_device_name(1)


def test_the_accelerators_functions_and_the_devices_are_the_same() -> None:
    value = (torch.ones(MIB, device=DEVICE) + 1).requires_grad_()
    for kind in KINDS:
        assert getattr(torch.accelerator, kind)() == getattr(module(), kind)() > 0
        for index in (0, "remote_accelerator:0", torch.device(DEVICE)):
            assert getattr(module(), kind)(index) == getattr(module(), kind)()
        with pytest.raises(ValueError, match="no number 1"):
            getattr(module(), kind)(1)
    assert torch.accelerator.get_memory_info() == module().mem_get_info()
    assert module().memory_stats()["allocated_bytes.all.current"] == module().memory_allocated()
    assert module().memory_reserved() > module().memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    del value


def test_what_is_reserved_and_free_djinnd_says(device_daemon: Daemon) -> None:
    value = torch.ones(3 * MIB, device=DEVICE) + 1
    reserved = module().memory_reserved()
    (own,) = [
        one
        for one in device_daemon.observer.sessions()
        if one["pid"] == os.getpid() and one["name"] != "observer"
    ]
    assert reserved == own["granted_bytes"] + own["shared_bytes"] >= module().memory_allocated()
    free, total = module().mem_get_info()
    status = device_daemon.status()
    assert total == status["memory_total_bytes"]
    assert 0 < free <= total - status["memory_granted_bytes"]
    del value


def test_a_summary_tells_what_there_is() -> None:
    value = torch.ones(8 * MIB, device=DEVICE) + 1
    lines = {
        line[:18].strip(): line[18:28].strip() for line in module().memory_summary().split("\n")
    }
    assert list(lines) == [*("tensors", "models", "at most so far", "session", "free", "in all")]
    assert lines["tensors"].endswith("MiB") and float(lines["tensors"].split()[0]) >= 32
    del value


def test_a_dropped_model_is_given_back_by_empty_cache(device_daemon: Daemon) -> None:
    model = torch.nn.Linear(512, 512).to(DEVICE)
    model(torch.ones(1, 512, device=DEVICE)).sum().item()

    def leases() -> int:
        return sum(one["leases"] for one in device_daemon.observer.models())

    held = module().memory_allocated()
    assert leases() == 1
    del model
    gc.collect()
    module().empty_cache()
    assert leases() == 0
    assert module().memory_allocated() <= held - MIB


# --- errors ---------------------------------------------------------------------------------------


SCRIPT = """
import torch, djinn.torch

DEVICE = djinn.torch.device
small = torch.ones(1000, device=DEVICE)
small.sum().item()
try:
    big = small[:, None] * torch.ones(40000, device=DEVICE)
    print("recorded", flush=True)
    total = big.sum()
    print("summed", flush=True)
    total.item()
except torch.OutOfMemoryError as error:
    print(error)
print("lives", (small + 1).sum().item())
"""


@pytest.mark.parametrize("blocking", ["", "0", "1"])
def test_an_operator_that_finds_no_memory_is_named_with_its_shape(
    blocking: str, tmp_path: Path
) -> None:
    """At the line that reads, or with DJINN_BLOCKING where it arises."""
    with running("--memory", str(160 * MIB)) as daemon:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "DJINN_HOST": daemon.host, "DJINN_BLOCKING": blocking},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert ("recorded" in done.stdout) == (blocking != "1"), done.stdout
    assert "aten::mul" in done.stdout and "40000" in done.stdout, done.stdout
    assert "out of memory" in done.stdout and "smaller batch" in done.stdout, done.stdout
    assert "or end a session." in done.stdout, "the daemon's sentence is whole"
    assert "lives 2000.0" in done.stdout
    assert ("MiB" in done.stdout) or blocking == "1", done.stdout
