# SPDX-License-Identifier: Apache-2.0
"""What is granted is what is held: beside neighbours, after failures, and when a client is gone."""

import itertools
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, events_of, wait_until_hashed
from other_user import User
from private_daemon import Daemon, repeated, running, wait_until
from safetensors.numpy import save_file

MIB = 1 << 20
CANCELLATIONS = 20
CHAIN = """srg 1 "chain {name}"
input %x : float32[{n}]
%a = aten::add.Tensor(%x, %x)
%b = aten::mul.Tensor(%a, %x)
%c = aten::sum(%b)
output %c
"""
# Says when its first run begins, which takes hundreds of megabytes.
VISITOR = """
import sys, djinn, numpy
host, source, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
session = djinn.connect(host, "visitor", staging_bytes=4 * count + 65536)
program = session.define(source)
x = numpy.ones(count, numpy.float32)
print("begins", flush=True)
program(x=x)
"""


def chain(count: int, name: str) -> str:
    return CHAIN.format(n=count, name=name)


def mapped_slab_bytes(pid: int) -> int:
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "djinn-slab" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            total += end - start
    return total


@contextmanager
def busy(daemon: Daemon) -> Iterator[None]:
    """A neighbour whose runs follow each other."""
    with daemon.connect("busy", staging_bytes=16 * MIB) as session:
        program = session.define(chain(1_000_000, "busy"))
        x = np.ones(1_000_000, np.float32)
        with repeated(lambda: program(x=x)):
            yield


def test_what_fails_beside_a_test_fails_the_test() -> None:
    begun = threading.Event()

    def fail() -> None:
        begun.set()
        raise ValueError("beside it")

    with pytest.raises(ValueError, match="beside it"), repeated(fail):
        begun.wait()


def test_a_program_is_there_when_it_was_defined_beside_a_busy_neighbour(daemon: Daemon) -> None:
    with busy(daemon):
        for number in range(20):
            with daemon.connect("guest") as session:
                program = session.define(chain(60_000 + number, f"of guest {number}"))
                x = np.ones(60_000 + number, np.float32)
                assert program(x=x)["c"] == 2 * (60_000 + number)


def test_a_write_beyond_the_bound_ref_is_an_error_and_kills_nobody() -> None:
    count = 200 * MIB // 4
    source = f"""srg 1 "beyond"
    input %x : float32[{count}]
    %y = aten::add_.Tensor(%x, %x)
    output %y
    """
    with (
        running("--session-quota", str(400 * MIB)) as daemon,
        daemon.connect("writer", staging_bytes=17 * MIB) as session,
    ):
        before = [session.put(np.zeros(16 * MIB, np.uint8)) for _ in range(14)]
        small = session.put(np.zeros(16, np.float32))
        for ref in before:
            ref.release()
        program = session.define(source)
        with pytest.raises(djinn.RequestError, match="beyond the ref"):
            # Past the package's own check of shapes.
            session.raw.run(program._program, [], {"x": small.handle}, [None], None)
        assert daemon.worker()["restarts"] == 0


def test_refs_are_granted_what_they_take_and_a_step_more(daemon: Daemon) -> None:
    with daemon.connect("refs") as session:
        before = daemon.status()["memory_sessions_bytes"]
        sizes = (200_000, 3 * MIB, 5 * MIB)
        refs = [session.put(np.zeros(size, np.uint8)) for size in sizes]
        assert daemon.status()["memory_sessions_bytes"] - before <= sum(sizes) + 2 * MIB
        assert [len(ref.numpy()) for ref in refs] == list(sizes)


def memory_of_refs(pid: int) -> int:
    """What of refs lies in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssShmem"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux tells of shared memory")


def fill(session: djinn.Session) -> int:
    """Puts refs until there is no room, and releases all; how many there were."""
    refs = []
    with pytest.raises(djinn.ResourceError, match="are needed"):
        while True:
            refs.append(session.put(np.ones(MIB, np.uint8)))
    for ref in refs:
        ref.release()
    return len(refs)


def test_one_refusal_is_one_event_that_misses_what_the_error_misses() -> None:
    with running("--memory", str(64 * MIB)) as daemon, daemon.connect("a") as session:
        kept = []
        with pytest.raises(djinn.ResourceError, match="more are needed") as refused:
            while True:
                kept.append(session.put(np.ones(5 * MIB // 2, np.uint8)))
        (event,) = events_of(daemon, "memory-refused")
        assert event["reason"] in str(refused.value)


def test_what_released_refs_took_is_there_for_the_sessions_own_runs_and_for_others() -> None:
    zeros = 'srg 1 "zeros"\n%y = aten::zeros([1000000])\noutput %y\n'
    with running("--memory", str(160 * MIB)) as daemon, daemon.connect("a") as session:
        refs = fill(session)
        assert refs > 100
        assert memory_of_refs(daemon.worker()["pid"]) > refs * MIB
        assert len(session.run_once(zeros)["y"]) == 1_000_000
        with daemon.connect("b") as other:
            kept = other.put(np.full(100 * MIB, 7, np.uint8))
            assert memory_of_refs(daemon.worker()["pid"]) < 160 * MIB
            assert kept.numpy(slice(50 * MIB, 50 * MIB + 4)).tolist() == [7, 7, 7, 7]
        assert fill(session) > 100


def test_a_worker_that_dies_beside_what_goes_back_loses_nothing() -> None:
    with running("--memory", str(160 * MIB)) as daemon:
        before = daemon.status()["memory_sessions_bytes"]
        with daemon.connect("a") as session, daemon.connect("b") as other:
            kept = session.put(np.arange(MIB // 8))
            for _ in range(3):
                for ref in [session.put(np.ones(10 * MIB, np.uint8)) for _ in range(10)]:
                    ref.release()
                with ThreadPoolExecutor(1) as pool:
                    killed = pool.submit(daemon.kill_worker)
                    other.put(np.ones(100 * MIB, np.uint8)).release()
                    killed.result()
            assert np.array_equal(kept.numpy(), np.arange(MIB // 8))
        wait_until(
            lambda: daemon.status()["memory_sessions_bytes"] == before,
            "all that was granted is back",
        )


@pytest.mark.ci
def test_clients_that_die_in_their_first_run_leave_the_lane_as_it_was() -> None:
    count = 20_000_000
    small = chain(1000, "of the neighbour")
    with running() as daemon, daemon.connect("neighbour") as neighbour:
        program = neighbour.define(small)
        x = np.ones(1000, np.float32)
        program(x=x)
        worker = daemon.worker()["pid"]
        tokens = itertools.count()
        for _ in range(6):
            visitor = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    VISITOR,
                    daemon.host,
                    chain(count, "of visitors"),
                    str(count),
                ],
                stdout=subprocess.PIPE,
                env=os.environ,
                text=True,
            )
            assert visitor.stdout is not None and visitor.stdout.readline() == "begins\n"
            for _ in range(1 + 3 * next(tokens)):  # at another moment each time
                program(x=x)
            visitor.kill()
            visitor.communicate()
            wait_until(lambda: daemon.status()["sessions"] == 2, "the visitor's session is gone")
            wait_until(
                lambda: daemon.status()["memory_lanes_bytes"] == mapped_slab_bytes(worker),
                "the lane holds its slab and no more",
            )
        assert program(x=x)["c"] == 2000
        assert daemon.worker()["restarts"] == 0


def models_of_many_names(directory: Path) -> Iterator[Path]:
    """Each has nearly as large a manifest as there may be, and few weights."""
    count, padding = 220_000, "x" * 240
    tensors = {
        f"{i:06}{padding}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(count)
    }
    header = json.dumps(tensors).encode()
    for value in itertools.count():
        path = directory / f"{value}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([value]) * count)
        yield path


def test_the_manifests_of_a_user_have_a_limit_together(tmp_path: Path) -> None:
    """They are memory that nobody grants."""
    paths = models_of_many_names(tmp_path)
    with running() as daemon, daemon.connect("user") as session:
        models = [session.load(next(paths)) for _ in range(2)]
        with pytest.raises(djinn.LimitError, match="manifests of this user's models"):
            session.load(next(paths))
        models[0].close()
        session.unload(models[0])
        session.load(next(paths))


NOBODY = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup")


@contextmanager
def eviction_that_waits(host: Daemon, place: Path) -> Iterator[None]:
    """Of a model of 48 MiB, which another user's worker is to let go of, and is stopped."""
    place.chmod(0o755)
    save_file({"w": np.zeros(12 * MIB, np.float32)}, place / "large.safetensors")
    (place / "large.safetensors").chmod(0o644)
    with NOBODY.acting():
        owner = host.connect("owner")
        owner.load(place / "large.safetensors")
    wait_until_hashed(host)
    worker = next(w["pid"] for w in host.status()["workers"] if w["owner"] == NOBODY.name)
    os.kill(worker, signal.SIGSTOP)
    owner.close()
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become another user")
def test_a_run_that_waits_for_memory_is_cancelled_and_wants_none_any_more() -> None:
    memory = ("--memory", str(128 * MIB), "--hang-timeout-ms", "600000")
    with (
        tempfile.TemporaryDirectory(prefix="djinn-memory.") as place,
        running(*memory, socket_group="nogroup") as host,
        host.connect("waiting", staging_bytes=41 * MIB) as session,
        ThreadPoolExecutor() as pool,
    ):
        host.directory.chmod(0o755)
        kept = session.put(np.ones(1000, np.float32))
        with eviction_that_waits(host, Path(place)):
            before = host.status()["memory_sessions_bytes"]
            mine = next(
                i["id"] for i in ctl(host, "sessions", "-j").items() if i["name"] == "waiting"
            )

            def shown() -> Any:
                return ctl(host, "show", mine, "-j").items()[0]["wait"]

            # Whether the cancellation or djinnd's answer to it comes to the lane first, the next
            # run asks for itself.
            for _ in range(CANCELLATIONS):
                run = pool.submit(session.put, np.zeros(40 * MIB, np.uint8))
                wait_until(lambda r=run: r.done() or shown() == "memory", "it waits")
                assert not run.done(), run.exception()
                assert ctl(host, "cancel", mine).code == 0
                with pytest.raises(djinn.LostError, match="given up"):
                    run.result(60)
                wait_until(lambda: shown() == "-", "nothing is waited for")
                assert kept.numpy().sum() == 1000, "the session goes on"
        wait_until(lambda: ctl(host, "ps", "-j").items()[0]["state"] == "disk", "it is evicted")
        assert host.status()["memory_sessions_bytes"] <= before
        assert len(session.put(np.zeros(40 * MIB, np.uint8)).numpy()) == 40 * MIB
