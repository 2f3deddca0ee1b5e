# SPDX-License-Identifier: Apache-2.0
"""Memory calls of a worker that fail, each of them once, but of a generation's one of three in the
default tier: the client gets a typed error or the right bytes, the next attempt succeeds, and
nothing is left behind."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import djinn
import numpy as np
import pytest
from private_daemon import Daemon, running, wait_until

CLEAN_MAX = 6  # so many calls in a row whose failing nobody saw: the session has no more of them
CALLS_MAX = 1000
FULL = os.environ.get("DJINN_TEST_TIER") == "full"


@dataclass(frozen=True)
class Canonical:
    """A session from connect to close, and the bytes that it must see."""

    visit: Callable[[Daemon], bytes]
    expected: bytes
    stride: int  # from one call that fails to the next one that does


def embed(model: Path) -> Callable[[Daemon], bytes]:
    ids = np.arange(1000, 1024).reshape(2, 12)

    def visit(daemon: Daemon) -> bytes:
        with daemon.connect("embed") as session:
            return djinn.Encoder(session, model).embed(ids).tobytes()

    return visit


def generate(model: Path) -> Callable[[Daemon], bytes]:
    def visit(daemon: Daemon) -> bytes:
        with daemon.connect("generate") as session:
            generator = djinn.Generator(session, model)
            made = generator.generate([[256, *b"The "]], max_new_tokens=8, stop_tokens=[])
            return bytes(made.tokens[0])

    return visit


def read_a_ref(daemon: Daemon) -> bytes:
    with daemon.connect("read") as session:
        ref = session.put(np.arange(300_000, dtype=np.float32))
        return ref.numpy(slice(0, 300_000, 3)).tobytes()


@pytest.fixture(params=["embed", "generate", "read a ref"])
def canonical(
    request: pytest.FixtureRequest, daemon: Daemon, minilm: Path, byte_model: Path
) -> Canonical:
    visit = {
        "embed": embed(minilm),
        "generate": generate(byte_model),
        "read a ref": read_a_ref,
    }[request.param]
    stride = 3 if request.param == "generate" and not FULL else 1
    return Canonical(visit, visit(daemon), stride)


def fails(daemon: Daemon, canonical: Canonical) -> bool:
    """Whether a visit ends with a typed error; else it has the right bytes."""
    try:
        assert canonical.visit(daemon) == canonical.expected
    except djinn.Error as error:
        assert error.code == "out_of_memory", error
        return True
    return False


def is_seen(call: int, canonical: Canonical) -> bool:
    """Whether the first client was told that the call failed, if it came to that."""
    with running("--test-pal-fault-at", str(call)) as daemon:
        failed = [fails(daemon, canonical) for _ in range(3)]
        assert sum(failed) <= 1, f"call {call}"
        wait_until(lambda: daemon.status()["memory_sessions_bytes"] == 0, "sessions are released")
        assert all(model["leases"] == 0 for model in daemon.observer.models()), f"call {call}"
        assert daemon.worker()["restarts"] == 0, f"call {call}"
        return failed[0]


@pytest.mark.ci
def test_any_failing_memory_call_is_an_error_or_unseen(canonical: Canonical) -> None:
    seen: list[bool] = []
    clean_max = CLEAN_MAX // canonical.stride
    while any(seen[-clean_max:]) or len(seen) < clean_max:
        seen.append(is_seen(1 + len(seen) * canonical.stride, canonical))
        assert len(seen) < CALLS_MAX
    assert sum(seen) >= 3, seen
