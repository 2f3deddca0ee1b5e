"""What is granted is what is held: beside neighbours, after failures, and when a client is gone."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import djinn
import numpy as np
import pytest
from private_daemon import Daemon, running, wait_until

MIB = 1 << 20
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
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                program(x=x)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


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
