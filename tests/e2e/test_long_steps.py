# SPDX-License-Identifier: Apache-2.0
"""A run may take as long as its author likes, and so may one of its operators: a worker lets go of
sessions between two of them, and no other user's requests wait for that."""

import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, wait_until_hashed
from private_daemon import Daemon, running, stopped, wait_until
from safetensors.numpy import save_file
from test_sharing import FIRST, GROUP, SECOND, disk, settle

__all__ = ["disk"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users")

MIB = 1 << 20
MEMORY = 512 * MIB
STAGING = 1 * MIB
# So many products of matrices take minutes, each of them a moment.
PRODUCTS, SIZE = 6000, 1024
OPERATOR_S = 20.0


def products(count: int) -> str:
    lines = [f"%y{i + 1} = aten::mm(%y{i}, %y0)" for i in range(count)]
    header = f'srg 1 "long"\n%y0 = aten::ones([{SIZE}, {SIZE}])\n'
    return header + "\n".join([*lines, f"%z = aten::sum(%y{count})", "output %z\n"])


def attention(tokens: int) -> str:
    """One operator, whose time grows with the square of the tokens."""
    return (
        f'srg 1 "long operator"\n%q = aten::ones([1, 1, {tokens}, 8])\n'
        "%y = aten::scaled_dot_product_attention(%q, %q, %q)\n%z = aten::sum(%y)\noutput %z\n"
    )


TWICE = """srg 1 "twice"
input %x : float32[4]
%y = aten::add.Tensor(%x, %x)
output %y
"""
SUM = """srg 1 "sum"
weight %w "w" : float32[4096]
%y = aten::sum(%w)
output %y
"""


@pytest.fixture
def host() -> Iterator[Daemon]:
    patient = ("--hang-timeout-ms", "600000")
    with running("--memory", str(MEMORY), *patient, socket_group=GROUP) as one:
        one.directory.chmod(0o755)
        yield one


def long_operator(session: djinn.Session) -> str:
    """One that takes so long on this machine, busy as it is."""
    tokens, seconds = 4096, 0.0
    while seconds < 0.2:
        tokens *= 2
        start = time.monotonic()
        session.run_once(attention(tokens))
        seconds = time.monotonic() - start
    return attention(int(tokens * (OPERATOR_S / seconds) ** 0.5))


@contextmanager
def long_step(host: Daemon, is_one_operator: bool = False) -> Iterator[Future[Any]]:
    """Of the first user's; it goes on until the end of the block."""
    with FIRST.acting():
        session = host.connect("long", staging_bytes=STAGING)

    def shown() -> dict[str, Any]:
        return next(i for i in ctl(host, "sessions", "-j").items() if i["name"] == "long")

    with session, ThreadPoolExecutor() as pool:
        session.run_once(products(4))  # the long one waits for no memory
        graph = long_operator(session) if is_one_operator else products(PRODUCTS)
        run = pool.submit(session.run_once, graph)
        try:
            wait_until(lambda: run.done() or bool(shown()["running"]), "the step has begun")
            assert not run.done(), run.exception()
            yield run
            assert not run.done(), "it goes on to the end of the test"
        finally:
            ctl(host, "cancel", shown()["id"])
            if is_one_operator:  # nothing else ends it
                os.kill(worker_of(host, FIRST.name), signal.SIGKILL)
            run.exception()


def sparse_model(path: Path, count: int) -> Path:
    tensors = {"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + count)
    path.chmod(0o644)
    return path


def free_bytes(host: Daemon) -> int:
    status = host.status()
    return int(status["memory_total_bytes"] - status["memory_granted_bytes"])


def test_a_session_that_leaves_beside_a_long_run_of_its_user_is_gone_at_once(host: Daemon) -> None:
    with FIRST.acting():
        leaving = host.connect("leaving", staging_bytes=STAGING)
        kept = leaving.put(np.zeros(64 * MIB, np.uint8))
    assert kept.numpy().sum() == 0
    with long_step(host) as run:
        leaving.close()
        wait_until(lambda: host.status()["memory_sessions_bytes"] < 64 * MIB, "it is gone")
        assert not run.done()


def test_a_request_that_waits_for_a_long_operator_is_refused_and_no_other_user_waits(
    host: Daemon, disk: Path
) -> None:
    with FIRST.acting():
        loading = host.connect("loading", staging_bytes=STAGING)
        leaving = host.connect("leaving", staging_bytes=STAGING)
        kept = leaving.put(np.zeros(64 * MIB, np.uint8))
    assert kept.numpy().sum() == 0
    with loading, ThreadPoolExecutor() as pool, long_step(host, is_one_operator=True):
        leaving.close()
        assert host.status()["memory_sessions_bytes"] > 64 * MIB, "until the operator ends"
        path = sparse_model(disk / "large.safetensors", free_bytes(host) + 32 * MIB)
        with FIRST.acting():
            load = pool.submit(loading.load, path)
            wait_until(
                lambda: load.done() or any(m["state"] == "loading" for m in host.observer.models()),
                "it is loaded",
            )
        with SECOND.acting(), host.connect("visitor", staging_bytes=STAGING) as visitor:
            assert visitor.run_once(TWICE, x=np.ones(4, np.float32))["y"].sum() == 8
            assert visitor.put(np.zeros(8 * MIB, np.uint8)).numpy().sum() == 0
        with pytest.raises(djinn.Error, match="wait for a long step: try later") as refused:
            load.result(60)
        assert refused.value.code == "out_of_memory"


def test_a_long_step_keeps_no_memory_of_models_that_it_does_not_use(
    host: Daemon, disk: Path
) -> None:
    path = disk / "idle.safetensors"
    save_file({"w": np.zeros(16 * MIB, np.float32)}, path)
    path.chmod(0o644)
    with FIRST.acting():
        holder = host.connect("holder", staging_bytes=STAGING)
        holder.load(path)
    wait_until_hashed(host)
    with holder, long_step(host):
        large = sparse_model(disk / "large.safetensors", free_bytes(host) + 32 * MIB)
        with SECOND.acting(), host.connect("other", staging_bytes=STAGING) as other:
            other.load(large)
        assert "disk" in [model["state"] for model in ctl(host, "ps", "-j").items()]


def worker_of(host: Daemon, user: str) -> int:
    return next(w["pid"] for w in host.status()["workers"] if w["owner"] == user)


@dataclass(frozen=True)
class Shared:
    """A model that two users have."""

    first: djinn.Session
    firsts: djinn.Model
    second: djinn.Session
    seconds: djinn.Model


@pytest.fixture
def shared(host: Daemon, disk: Path) -> Iterator[Shared]:
    path = disk / "shared.safetensors"
    save_file({"w": np.ones(4096, np.float32)}, path)
    path.chmod(0o644)
    settle(path)
    with FIRST.acting():
        first = host.connect("first", staging_bytes=STAGING)
        firsts = first.load(path)
    with SECOND.acting():
        second = host.connect("second", staging_bytes=STAGING)
        seconds = second.load(path)
    with first, second:
        assert firsts.id == seconds.id
        wait_until_hashed(host)
        yield Shared(first, firsts, second, seconds)


def test_a_shared_model_comes_back_beside_a_long_step_of_another_who_has_it(
    host: Daemon, shared: Shared
) -> None:
    with long_step(host):
        assert ctl(host, "evict", "--force", "--all").code == 0
        assert shared.second.run_once(SUM, shared.seconds)["y"] == 4096


def test_a_model_that_is_used_before_all_workers_have_let_go_of_it_stays(
    host: Daemon, shared: Shared
) -> None:
    def state() -> str:
        (model,) = ctl(host, "ps", "-j").items()
        return str(model["state"])

    with ThreadPoolExecutor() as pool, stopped([worker_of(host, FIRST.name)]):
        eviction = pool.submit(ctl, host, "evict", "--force", "--all")
        wait_until(lambda: state() == "evicting", "its workers are to let go of it")
        assert shared.second.run_once(SUM, shared.seconds)["y"] == 4096
        assert state() == "resident"
        assert eviction.result(60).code == 6
        assert "used again" in eviction.result().err
    # The worker that was slow gets it again.
    assert shared.first.run_once(SUM, shared.firsts)["y"] == 4096
