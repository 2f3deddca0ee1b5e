# SPDX-License-Identifier: Apache-2.0
"""Copies of models in a GPU's memory, on the fake driver, as an administrator sees them, and over
djinnd's own death."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import ctl
from private_daemon import BIN, wait_until
from systemd_double import Systemd

FAKES = BIN.parent / "fake_cuda"
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not FAKES.exists(), reason="the fakes of a GPU are not built")


@pytest.fixture
def with_gpu(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    (nodes / "nvidia0").symlink_to("/dev/null")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("DJINN_FAKE_CUDA", "memory=4G")
    monkeypatch.setenv("DJINN_FAKE_NVML", "driver=580.7;minor=0")
    start_with_gpu(systemd, nodes)
    return systemd


def start_with_gpu(systemd: Systemd, nodes: Path) -> None:
    options = ["--user", "--threads", "1", "--devices", "cuda:0", "--device-limit", "cuda:0=1GiB"]
    systemd.start(*options, "--test-nodes", str(nodes), "--cuda-worker", "/nonexistent")
    wait_until(lambda: gpu_of(systemd)["state"] == "ready", "the GPU is ready")


def gpu_of(systemd: Systemd) -> dict[str, Any]:
    (_, gpu) = ctl(systemd, "devices", "-j").items()
    return gpu


def copies_of(systemd: Systemd) -> list[str]:
    (model,) = ctl(systemd, "ps", "-j").items()
    return list(model["copies"] or [])


def bytes_read(systemd: Systemd) -> int:
    (status,) = ctl(systemd, "status", "-j").items()
    return int(status["bytes_read"])


def place(systemd: Systemd, model: Path) -> dict[str, Any]:
    (placed,) = ctl(systemd, "load", str(model), "--device", "cuda:0", "-j").items()
    return placed


def copies_kept(systemd: Systemd) -> list[str]:
    return [name for name in systemd.store if name.startswith("copy.")]


def test_an_administrator_puts_a_model_on_a_gpu_sees_it_there_and_takes_it_off(
    with_gpu: Systemd, byte_model: Path
) -> None:
    before = gpu_of(with_gpu)
    assert (before["used_bytes"], before["total_bytes"]) == (0, 1 << 30)
    assert before["hardware_bytes"] == 4 << 30
    placed = place(with_gpu, byte_model)
    assert placed["uploaded_bytes"] == placed["bytes"] > 0
    assert placed["device_bytes"] % (2 * MIB) == 0
    assert copies_of(with_gpu) == ["cuda:0"]
    assert "cpu:0,cuda:0" in ctl(with_gpu, "ps").out.decode()
    pools = [one for one in ctl(with_gpu, "mem", "-j").items() if one["device"] == "cuda:0"]
    (pool,) = [one for one in pools if one["pool"] == "weights"]
    assert pool["reserved_bytes"] == pool["pinned_bytes"] == placed["device_bytes"]
    assert place(with_gpu, byte_model)["uploaded_bytes"] == 0
    assert gpu_of(with_gpu)["uploaded_bytes"] == placed["bytes"]
    evicted = ctl(with_gpu, "evict", placed["id"], "--to", "host")
    assert evicted.code == 0, evicted.err
    assert (copies_of(with_gpu), gpu_of(with_gpu)["used_bytes"]) == ([], 0)
    assert ctl(with_gpu, "evict", placed["id"], "--to", "host").code != 0, "there is no copy"
    sessions = ctl(with_gpu, "generate", str(byte_model), "--prompt", "a", "--device", "cuda:0")
    assert "no worker for GPUs" in sessions.err


@pytest.mark.parametrize(
    ("how", "times"),
    [
        (signal.SIGKILL, 3),
        (signal.SIGTERM, 3),
        pytest.param(signal.SIGKILL, 20, marks=pytest.mark.full),
    ],
)
def test_copies_outlive_the_daemon_and_nothing_is_read_or_uploaded_again(
    with_gpu: Systemd, byte_model: Path, tmp_path: Path, how: signal.Signals, times: int
) -> None:
    place(with_gpu, byte_model)
    with_gpu.hear_until(lambda: bool(copies_kept(with_gpu)))
    assert list(with_gpu.store).index("anchor.0") < list(with_gpu.store).index(
        copies_kept(with_gpu)[0]
    )
    for _ in range(times):
        with_gpu.stop(how)
        assert copies_kept(with_gpu)
        start_with_gpu(with_gpu, tmp_path / "nodes")
        wait_until(lambda: copies_of(with_gpu) == ["cuda:0"], "the copy is there")
        assert (bytes_read(with_gpu), gpu_of(with_gpu)["uploaded_bytes"]) == (0, 0)
    (model,) = ctl(with_gpu, "ps", "-j").items()
    assert ctl(with_gpu, "unload", model["id"]).code == 0
    with_gpu.hear_until(lambda: not copies_kept(with_gpu))


def test_a_copy_that_changed_meanwhile_is_made_anew_from_the_host(
    with_gpu: Systemd, byte_model: Path, tmp_path: Path
) -> None:
    placed = place(with_gpu, byte_model)
    with_gpu.hear_until(lambda: bool(copies_kept(with_gpu)))
    with_gpu.stop(signal.SIGKILL)
    assert os.pwrite(with_gpu.store[copies_kept(with_gpu)[0]], b"!", 4099) == 1
    start_with_gpu(with_gpu, tmp_path / "nodes")
    wait_until(lambda: copies_of(with_gpu) == ["cuda:0"], "the copy is there")
    assert gpu_of(with_gpu)["uploaded_bytes"] == placed["bytes"]
    assert bytes_read(with_gpu) == 0
