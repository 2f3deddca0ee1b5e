# SPDX-License-Identifier: Apache-2.0
"""What kernels take beside their results is a session's, too: a byte that is expanded to millions
of elements does not have the worker grow past its quota."""

import re
from collections.abc import Iterator
from pathlib import Path

import djinn
import numpy as np
import pytest
from private_daemon import Daemon, running

QUOTA = 64 << 20
ELEMENTS = 40_000_000  # pairs of a byte and its index: ten times the quota
CALLS = {
    "topk": "%y, %i = aten::topk(%e, 1, 0, true, true)",
    "mode": "%y, %i = aten::mode(%e, 0, false)",
}


@pytest.fixture(scope="module")
def host() -> Iterator[Daemon]:
    with running("--memory", str(1500 << 20), "--session-quota", str(QUOTA)) as daemon:
        yield daemon


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("op", CALLS)
def test_a_kernel_gets_no_more_than_its_session_may_have(host: Daemon, op: str) -> None:
    def graph(elements: int) -> str:
        expand = f"%e = aten::expand(%x, [{elements}])"
        return "\n".join(
            ['srg 1 "choice"', "input %x : uint8[1]", expand, CALLS[op], "output %y", ""]
        )

    x = np.ones(1, np.uint8)
    with host.connect("session", staging_bytes=4 << 20) as session:
        session.run_once(graph(4), x=x)
        worker = host.worker()
        before = peak_bytes(worker["pid"])
        with pytest.raises(djinn.LimitError, match="session's quota"):
            session.run_once(graph(ELEMENTS), x=x)
        assert host.worker()["pid"] == worker["pid"]
        assert peak_bytes(worker["pid"]) - before < QUOTA
        assert session.run_once(graph(1_000_000), x=x)["y"].item() == 1
