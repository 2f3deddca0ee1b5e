# SPDX-License-Identifier: Apache-2.0
"""What is told of huge pages is what the kernel has mapped in the worker, whatever the host allows.

Nothing here writes the host's setting, so each test looks at what is in force.
"""

import re
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, wait_until_hashed
from private_daemon import Daemon, running
from safetensors.numpy import save_file

MIB = 1 << 20
BLOCK = 2 * MIB
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
ALLOWING = {"advise", "within_size", "always", "force"}
# Every memfd is huge there, whoever asked for it.
UNASKED = {"within_size", "always", "force"}


def setting() -> str | None:
    """What the host allows, as the kernel calls it."""
    for name in ("hugepages-2048kB/shmem_enabled", "shmem_enabled"):
        if (SETTINGS / name).exists():
            word = re.findall(r"\[(.*)\]", (SETTINGS / name).read_text())[0]
            if word != "inherit":
                return word
    return None


def refused_blocks() -> int:
    """How often the kernel has had no huge page for who asked, anywhere on the host."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts.get("thp_file_fallback", 0))


def huge_bytes_mapped(daemon: Daemon) -> int:
    """Of weights, in the worker."""
    total, is_weights = 0, False
    for line in Path(f"/proc/{daemon.worker()['pid']}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_weights = "djinn-weights" in line
        elif is_weights and line.startswith("ShmemPmdMapped:"):
            total += int(line.split()[1]) * 1024
    return total


def told(daemon: Daemon) -> int:
    """Of the one model, which the device adds up to."""
    (model,) = ctl(daemon, "ps", "-j").items()
    (device,) = ctl(daemon, "devices", "-j").items()
    assert device["huge_bytes"] == model["huge_bytes"] <= model["bytes"]
    assert device["huge_pages"] == setting()
    return model["huge_bytes"]


def read_all(session: djinn.Session, model: djinn.Model, dtype: str, count: int) -> None:
    """The worker reads each byte of the weight."""
    source = f'srg 1 "sum"\nweight %w "w" : {dtype}[{count}]\n%s = aten::sum(%w)\noutput %s\n'
    session.define(source, model)()


def weights(tmp_path: Path, size: int) -> Path:
    path = tmp_path / f"{size}.safetensors"
    save_file({"w": np.ones(size // 4, np.float32)}, path)
    return path


def as_bfloat16(count: int) -> djinn.LoadPlan:
    piece = djinn.Piece(0, "w")
    return djinn.LoadPlan((djinn.Destination("w", "bfloat16", (count,), (piece,), 0),))


@pytest.mark.parametrize("cast", [False, True], ids=["as it is", "cast"])
def test_what_is_told_is_what_the_worker_has_mapped(tmp_path: Path, cast: bool) -> None:
    size = 4 * BLOCK + 5 * 4096
    refused = refused_blocks()
    with running() as daemon, daemon.connect("one") as session:
        count = size // 4
        options: dict[str, Any] = {"plan": as_bfloat16(count)} if cast else {}
        model = session.load(weights(tmp_path, size), **options)
        dtype, held = ("bfloat16", size // 2) if cast else ("float32", size)
        for _ in range(2):  # the second time it comes back from disk
            read_all(session, model, dtype, count)
            assert told(daemon) == huge_bytes_mapped(daemon)
            assert told(daemon) in range(0, held + 1, BLOCK)
            if setting() not in ALLOWING:
                assert told(daemon) == 0
            wait_until_hashed(daemon)
            (item,) = ctl(daemon, "ps", "-j").items()
            assert ctl(daemon, "evict", "--force", item["id"]).code == 0
            assert told(daemon) == 0
        read_all(session, model, dtype, count)
        if setting() in ALLOWING and refused_blocks() == refused:
            assert told(daemon) > 0
        model.close()


def test_no_model_takes_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    if setting() in UNASKED:
        pytest.skip(f"this host gives huge pages to whoever did not ask: {setting()}")
    sizes = [75 * 4096, BLOCK - 4096, BLOCK, BLOCK + 75 * 4096]
    with running() as daemon, daemon.connect("one") as session:
        models = [session.load(weights(tmp_path, size)) for size in sizes]
        granted = daemon.status()["memory_models_bytes"]
        extents = {}
        for one in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
            if "djinn-weights" in str(one.readlink()):
                info = one.stat()
                extents[info.st_ino] = (info.st_size, info.st_blocks * 512)
        assert len(extents) == len(sizes)
        for size, taken in extents.values():
            assert taken == size
        assert sum(taken for _, taken in extents.values()) == granted
        for model in models:
            model.close()
