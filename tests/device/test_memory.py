# SPDX-License-Identifier: Apache-2.0
"""What a process has in djinnd, as torch.cuda would tell it; and that it is given back."""

import gc
import subprocess
from pathlib import Path
from typing import Any

import djinn
import forked
import pytest
import torch
import transformers
from alone import run_alone
from private_daemon import Daemon, own_pids, running
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


BEYOND_ALL = """
import torch, djinn.torch
for bits in 28, 31:
    try:
        torch.ones(1 << bits, device="remote_accelerator:0").sum().item()
    except torch.OutOfMemoryError as error:
        print(error)
"""


def test_no_larger_quota_is_advised_where_that_is_above_all_memory() -> None:
    with running("--memory", "300MiB", "--session-quota", "1GiB") as daemon:
        as_large, larger = run_alone(daemon, BEYOND_ALL).splitlines()
    assert "Release something, or ask for less: djinnd has 300 MiB for all." in as_large
    assert "larger memory.session_quota, if djinnd has more memory than that" in larger


@pytest.mark.usefixtures("enabled")
def test_what_nobody_has_written_is_shown_without_memory_for_it() -> None:
    before = module().memory_allocated()
    large = torch.empty(1 << 36, device=DEVICE)
    assert repr(large) == f"tensor([0., 0., 0.,  ..., 0., 0., 0.], device='{DEVICE}')"
    assert module().memory_allocated() == before


def test_a_run_beyond_the_quota_says_how_far_and_who_may_raise_it() -> None:
    """That of every session, as djinnd is configured by itself."""
    side = torch.ones(1_000_000, device=DEVICE)
    said = r"needs 3\.6 TiB for .* quota is 4\.0 GiB\. .* a larger memory\.session_quota, if"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        (side[:, None] * side).sum().item()


REFUSED = """
import torch, djinn.torch

device = torch.remote_accelerator
kept = torch.ones(4 << 20, device=djinn.torch.device) + 1
beside = kept * 2
try:
    (torch.zeros(1 << 28, device=djinn.torch.device) + 1).sum().item()
except torch.OutOfMemoryError:
    print("refused")
print(device.memory_allocated() >> 20, device.max_memory_allocated() >> 20)
"""


def test_what_was_refused_was_never_held() -> None:
    with running("--memory", "160MiB") as daemon:
        assert run_alone(daemon, REFUSED) == "refused\n32 32\n"


ASK_FIRST = """
import torch, djinn.torch

device = torch.remote_accelerator
free, total = device.mem_get_info()
print(0 < free <= total == device.get_device_properties(0).total_memory)
print(device.memory_allocated(), (torch.ones(4, device=djinn.torch.device) * 3).sum().item())
"""


def test_how_much_there_is_can_be_asked_before_the_first_tensor(device_daemon: Daemon) -> None:
    assert run_alone(device_daemon, ASK_FIRST) == "True\n0 12.0\n"


ASK_NOBODY = """
import os
os.environ["DJINN_HOST"] = "/nonexistent/djinnd.sock"
import torch, djinn.torch

device = torch.remote_accelerator
for ask in (device.mem_get_info, device.memory_summary, device.get_device_properties):
    try:
        ask()
    except RuntimeError as error:
        print("No djinnd answers at /nonexistent/djinnd.sock" in str(error))
print(device.memory_allocated(), device.max_memory_allocated(), device.memory_reserved())
"""


def test_what_connects_says_why_there_is_no_session_and_the_rest_is_zero(
    device_daemon: Daemon,
) -> None:
    assert run_alone(device_daemon, ASK_NOBODY) == "True\nTrue\nTrue\n0 0 0\n"


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
        if one["pid"] in own_pids() and one["name"] != "observer"
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
    """At its line: what is so large is waited for."""
    with running("--memory", str(160 * MIB)) as daemon:
        done = run_script(daemon, SCRIPT, blocking)
    assert done.returncode == 0, done.stderr
    assert "recorded" not in done.stdout, done.stdout
    assert "aten::mul" in done.stdout and "40000" in done.stdout, done.stdout
    assert "out of memory" in done.stdout and "smaller batch" in done.stdout, done.stdout
    assert "or end a session." in done.stdout, "the daemon's sentence is whole"
    assert "lives 2000.0" in done.stdout
    assert "MiB" in done.stdout, done.stdout


def run_script(daemon: Daemon, script: str, blocking: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run("-c", script, DJINN_HOST=daemon.host, DJINN_BLOCKING=blocking)


CONVERT = """
import torch, djinn.torch

torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 2048) for _ in range(LAYERS))).half()
local = [one.detach().clone() for one in model.parameters()]
model.to(djinn.torch.device)
torch.remote_accelerator.synchronize()
try:
    model.float()
    for one in model.parameters():
        one.sum().item()
    print("all")
except torch.OutOfMemoryError as error:
    print("no memory", "aten::copy_ (" in str(error), "[2048, 1024]" in str(error))
converted = [one.dtype == torch.float32 for one in model.parameters()]
print(sum(converted), converted == sorted(converted, reverse=True))
for before, after in zip(local, model.parameters()):
    assert torch.equal(before.to(after.dtype), after.detach().cpu())
model = None
print((torch.ones(3, device=djinn.torch.device) + 1).tolist())
"""


def test_a_model_that_does_not_fit_in_another_dtype_is_not_lost() -> None:
    """What was converted before there was no memory is; the rest is as it was."""
    with running("--memory", str(160 * MIB)) as daemon:
        done = run_script(daemon, CONVERT.replace("LAYERS", "24"))
    assert done.returncode == 0, done.stderr
    outcome, converted, after = done.stdout.splitlines()
    assert outcome == "no memory True True", done.stdout
    count, in_order = converted.split()
    assert in_order == "True" and 0 < int(count) < 48, done.stdout
    assert after == "[2.0, 2.0, 2.0]"


ONE_BY_ONE = """
import torch, djinn.torch

def make(number):
    return torch.arange(2**21, dtype=torch.float32).add(number).half()

held = [make(number).to(djinn.torch.device) * 1 for number in range(11)]
torch.remote_accelerator.synchronize()
for number in range(11):
    held[number] = held[number].float()
print(all(torch.equal(make(number).float(), one.cpu()) for number, one in enumerate(held)))
"""


def test_what_is_replaced_makes_room_for_what_replaces_it() -> None:
    """As on the CPU: all of both together would not fit."""
    with running("--memory", str(160 * MIB)) as daemon:
        done = run_script(daemon, ONE_BY_ONE)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


MANY = """
import torch, djinn.torch

DEVICE = djinn.torch.device
state, zeros = torch.ones(1000, device=DEVICE), torch.zeros(7, device=DEVICE)
torch.remote_accelerator.synchronize()
held, leaf = [], torch.ones(250_000, device=DEVICE, requires_grad=True)
for step in range(400):  # of training, which is recorded and not waited for
    state.add_(1)
    held.append(leaf * step)
    state.add_(1)
zeros.add_(1)
try:
    held[-1].sum().item()
except torch.OutOfMemoryError as error:
    print("no memory", "aten::mul" in str(error), "250000" in str(error))

def is_made(tensor):
    try:
        return bool(tensor[0].item() >= 0)
    except torch.OutOfMemoryError:
        return False

made = [is_made(one) for one in held]
count = sum(made)
print(count, made == [True] * count + [False] * (400 - count))
print(all(one[7].item() == step for step, one in enumerate(held[:count])))
print(state[5].item() == 1 + 2 * count + 1, zeros.tolist() == [0.0] * 7)
del held
state.add_(1)
print(state[5].item() == 1 + 2 * count + 2)
"""


def test_what_found_memory_before_an_operator_that_did_not_has_happened() -> None:
    with running("--memory", str(160 * MIB)) as daemon:
        done = run_script(daemon, MANY)
    assert done.returncode == 0, done.stderr
    outcome, made, values, state, after = done.stdout.splitlines()
    assert outcome == "no memory True True", done.stdout
    count, in_order = made.split()
    assert 40 < int(count) < 160 and in_order == "True", done.stdout
    assert (values, state, after) == ("True", "True True", "True"), done.stdout


UPLOAD = """
import torch, djinn.torch

DEVICE = djinn.torch.device
small = torch.ones(1000, device=DEVICE)
large = torch.full((60_000_000,), 2.0).to(DEVICE)
small.add_(1)
for look in (lambda: (large + 1).sum().item(), lambda: large[0].item()):
    try:
        look()
    except torch.OutOfMemoryError:
        print("no memory")
print(small[0].item())
"""


def test_what_is_sent_and_finds_no_memory_loses_nothing_else() -> None:
    with running("--memory", str(160 * MIB)) as daemon:
        done = run_script(daemon, UPLOAD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no memory", "no memory", "2.0"]
