# SPDX-License-Identifier: Apache-2.0
"""Control groups whose processes share so much of the processors, cgroups(7)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MOUNTS = Path("/sys/fs/cgroup")
PERIOD_US = 20_000


def places() -> Iterator[tuple[Path, dict[str, str]]]:
    """Where such a group could be made, and what makes it have {quota} microseconds a period."""
    for first in (MOUNTS / "cpu", MOUNTS / "cpu,cpuacct"):
        if (first / "cpu.cfs_quota_us").exists():
            yield first, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": "{quota}"}
    controllers = MOUNTS / "cgroup.subtree_control"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        yield MOUNTS, {"cpu.max": f"{{quota}} {PERIOD_US}"}


@contextmanager
def left_only(percent: int, pid: int) -> Iterator[None]:
    """The process, with all of its threads and what it starts, has so much of the processors in the
    block; 100 is all of one."""
    group = None
    for parent, files in places():
        group = parent / f"djinn-test-{os.getpid()}-{pid}"
        try:
            group.mkdir()
            for name, value in files.items():
                (group / name).write_text(value.format(quota=PERIOD_US * percent // 100))
            (group / "cgroup.procs").write_text(str(pid))
            break
        except OSError:
            if group.exists():
                group.rmdir()
            group = None
    if group is None:
        pytest.skip(f"NO CONTROL GROUP CAN BE MADE HERE (needs root, and the cpu one in {MOUNTS})")
    try:
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):  # it has ended
                (group.parent / "cgroup.procs").write_text(left)
        group.rmdir()
