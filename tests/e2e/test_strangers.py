# SPDX-License-Identifier: Apache-2.0
"""Sessions of one user share a worker: no graph of one ends it, or takes what is the others'. Nor
does a user who connects and is refused in a loop hold up another's connections."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import djinn
import numpy as np
import pytest
from backdoor import Backdoor
from command_line import events_of
from private_daemon import Daemon, running, wait_until
from test_sharing import FIRST

MEMORY = 600 << 20
ROWS = 4_000_000
VALUES = 64 << 20
LEAST = np.iinfo(np.int32).min
AT_ONCE = 48  # connections: fewer than the socket's queue has room for

DOUBLE = """srg 1 "double"
input %x : float32[4]
%y = aten::add.Tensor(%x, %x)
output %y
"""

# Calls that ended the worker, three in a row, gave memory that nobody wrote, or took as much as
# they liked: inputs, and the call.
HOSTILE: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "aten::reflection_pad3d": ({"x": np.ones((1, 2, 4, 4, 4), np.float32)}, "(%x, [])"),
    "aten::native_channel_shuffle": ({"x": np.ones((2, 4, 4), np.float32)}, "(%x, 0)"),
    "aten::_weight_norm": (
        {"x": np.ones((4, 3), np.float32), "g": np.ones(0, np.float32)},
        "(%x, %g, 0)",
    ),
    "aten::grid_sampler_2d": (
        {"x": np.ones((1, 2, 4, 4), np.float32), "g": np.ones((1, 3, 3, 2), np.float32)},
        "(%x, %g, 7, 0, false)",
    ),
    "aten::lcm": ({"x": np.full(9, LEAST, np.int32), "g": np.full(9, 7, np.int32)}, "(%x, %g)"),
    "aten::soft_margin_loss": ({"x": np.ones(0, np.float32)}, "(%x, %x, 7)"),
    "aten::unbind.int": ({"x": np.ones(ROWS, np.float32)}, "(%x, 0)"),
}


@pytest.fixture(scope="module")
def host() -> Iterator[Daemon]:
    with running("--memory", str(MEMORY)) as daemon:
        yield daemon


def graph(call: str, inputs: dict[str, np.ndarray]) -> str:
    names = [
        f"input %{name} : {value.dtype}[{', '.join(map(str, value.shape))}]"
        for name, value in inputs.items()
    ]
    return "\n".join(['srg 1 "hostile"', *names, f"%y = {call}", "output %y", ""])


def incarnation(host: Daemon) -> tuple[int, int]:
    worker = host.worker()
    return worker["pid"], worker["restarts"]


def doubles(session: djinn.Session) -> bool:
    x = np.arange(4, dtype=np.float32)
    return bool((session.run_once(DOUBLE, x=x)["y"] == x + x).all())


@pytest.mark.parametrize("operator", HOSTILE)
def test_a_hostile_call_is_refused_by_name_and_its_worker_lives(
    host: Daemon, operator: str
) -> None:
    inputs, arguments = HOSTILE[operator]
    with host.connect("hostile", staging_bytes=32 << 20) as session:
        assert doubles(session)
        before = incarnation(host)
        with pytest.raises(djinn.Error, match=operator):
            session.run_once(graph(operator + arguments, inputs), **inputs)
        assert doubles(session)
        assert incarnation(host) == before


@pytest.mark.parametrize(
    "call", ["aten::arange(2147483648)", "aten::zeros([65536, 65536])", "aten::eye(100000)"]
)
def test_what_no_quota_holds_is_refused_before_it_is_allocated(host: Daemon, call: str) -> None:
    with host.connect("long", staging_bytes=1 << 20) as session:
        assert doubles(session)
        before = incarnation(host)
        with pytest.raises(djinn.Error, match="quota"):
            session.run_once(graph(call, {}))
        assert doubles(session)
        assert incarnation(host) == before


def test_memory_that_is_not_granted_to_a_kernel_is_the_runs_error_alone() -> None:
    """It keeps 16 bytes for each value, in no memory that an allocator of ours gives."""
    values = {"x": np.zeros(VALUES, np.uint8)}
    source = graph("", values).replace("%y = ", "%y, %i = aten::topk(%x, 1, 0, true, true)")
    with (
        running("--memory", str(256 << 20)) as host,
        host.connect("greedy", staging_bytes=VALUES + (1 << 20)) as greedy,
        host.connect("neighbour", staging_bytes=1 << 20) as neighbour,
    ):
        assert doubles(neighbour)
        before = incarnation(host)
        with pytest.raises(djinn.Error, match=r"1\.0 GiB are needed, which cannot fit"):
            greedy.run_once(source, **values)
        assert doubles(greedy)
        assert doubles(neighbour)
        assert incarnation(host) == before


def large_group(session: djinn.Session) -> djinn.SequenceGroup:
    """It could grow to some 473 GiB, of the 512 that all groups of a session may."""
    return session.sequence(32, 15, 2, 63, "float32", 1 << 20)


def small_group(session: djinn.Session) -> djinn.SequenceGroup:
    return session.sequence(1, 1, 1, 8, "float32", 16)


def test_no_sessions_groups_take_the_addresses_of_the_others(host: Daemon) -> None:
    """Their worker maps each group whole, and has 128 TiB of addresses for all its sessions."""
    with host.connect("neighbour", staging_bytes=1 << 20) as neighbour, ExitStack() as kept:
        assert doubles(neighbour)
        before = incarnation(host)
        for number in range(120):  # beside the daemon's observers, 128 are a user's
            session = kept.enter_context(host.connect(f"s{number}", staging_bytes=1 << 16))
            group = large_group(session)
            with pytest.raises(djinn.Error, match="512 GiB together") as full:
                large_group(session)
            assert full.value.code == "limit_exceeded"
            small_group(session)
        large_group(neighbour)
        assert doubles(neighbour)
        group.drop()
        large_group(session)
        assert incarnation(host) == before


def test_addresses_come_back_with_the_end_of_their_session(host: Daemon) -> None:
    with host.connect("neighbour", staging_bytes=1 << 20) as neighbour:
        assert doubles(neighbour)
        before = incarnation(host)
        for _ in range(300):  # more than the worker's addresses hold at a time
            with host.connect("passes", staging_bytes=1 << 16) as session:
                large_group(session)
        assert doubles(neighbour)
        assert incarnation(host) == before


def test_no_quota_lets_sessions_refs_take_all_addresses() -> None:
    """Those of each session lie in a section as large as its quota, which the worker maps whole."""
    with (
        running("--memory", str(MEMORY), "--session-quota", str(4 << 40)) as host,
        ExitStack() as kept,
    ):
        for number in range(40):
            session = kept.enter_context(host.connect(f"s{number}", staging_bytes=1 << 16))
            session.put(np.ones(4, np.float32))
        assert doubles(session)


def watches(pid: int) -> int:
    """Of all its epoll instances."""
    count = 0
    for one in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += one.read_text().count("tfd:")
    return count


@pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to look into a worker")
def test_a_bell_that_a_client_keeps_costs_its_worker_no_watch(host: Daemon) -> None:
    """Watches count against the user of all workers and djinnd, who may have so many."""
    with host.connect("neighbour", staging_bytes=1 << 20) as neighbour:
        assert doubles(neighbour)
        pid = host.worker()["pid"]
        before = watches(pid)
        kept = []
        try:
            for _ in range(8):
                client = Backdoor(lambda: host.connect("keeps", staging_bytes=1 << 20))
                assert doubles(client.session)
                kept.append(os.dup(client.bell))
                client.session.close()
            wait_until(lambda: watches(pid) == before, "the watches end", 10)
        finally:
            for bell in kept:
                os.close(bell)


def connect_raw(host: Daemon) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(str(host.directory / "djinnd.sock"))
    return one


@pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become another user")
def test_refused_connections_are_their_users_and_the_next_user_is_served_behind_them() -> None:
    """What they are charged for that, arrivals_test.cc counts."""
    with running("--memory", str(MEMORY)) as host:
        host.directory.chmod(0o711)
        (host.directory / "djinnd.sock").chmod(0o666)
        for _ in range(8):
            with ExitStack() as open_sockets:
                with FIRST.acting():
                    refused = [
                        open_sockets.enter_context(connect_raw(host)) for _ in range(AT_ONCE)
                    ]
                with host.connect("neighbour", staging_bytes=1 << 20) as neighbour:
                    assert doubles(neighbour)
                answers = [one.recv(1 << 16) for one in refused]
            assert all(
                b"another user" in answer or b"one user wait" in answer for answer in answers
            )
        told = events_of(host, "session-refused")
        assert told
        assert {event["uid"] for event in told} == {FIRST.uid}
