# SPDX-License-Identifier: Apache-2.0
"""A djinnd on another machine: the same bytes through djinn-reach and djinn-gate, over a command's
standard input and output, and nothing left when one of them dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import BIN, Daemon, running, wait_until
from safetensors.torch import save_file
from small_graphs import DOUBLE, REFUSED
from small_graphs import LINEAR as LINEAR_OF

LINEAR = LINEAR_OF.format(dtype="float32")

CHILD = """
import os, sys
import djinn
session = djinn.connect(sys.argv[1], "child")
ref = session.put(bytearray(1 << 20))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def far(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[djinn.Session]:
    with djinn.connect(daemon.far_host, request.node.name) as session:
        yield session


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    tensors = {"layer.weight": torch.randn(64, 96), "layer.bias": torch.randn(64)}
    save_file(tensors, tmp_path / "layer.safetensors")
    return tmp_path / "layer.safetensors"


def processes(name: str, host: str) -> list[int]:
    """Those of a program whose command line names the host."""
    found = []
    for one in Path("/proc").iterdir():
        if not one.name.isdigit():
            continue
        try:
            line = (one / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if Path(line.split(b"\0")[0].decode()).name == name and host.encode() in line:
            found.append(int(one.name))
    return found


def test_a_linear_gives_the_bytes_that_it_gives_here(
    daemon: Daemon, far: djinn.Session, layer: Path
) -> None:
    with djinn.connect(daemon.near_host, "near") as near:
        here, there = near.load(layer), far.load(layer)
        assert there.tensors == here.tensors
        for rows in (1, 7, 512):
            x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
            expected = near.run_once(LINEAR, here, x=x)["y"].tobytes()
            assert far.run_once(LINEAR, there, x=x)["y"].tobytes() == expected
            assert far.define(LINEAR, there)(x=x)["y"].tobytes() == expected


def test_what_is_longer_than_a_message_crosses_whole(daemon: Daemon) -> None:
    with djinn.connect(daemon.far_host, "large", staging_bytes=32 << 20) as far:
        large = np.random.default_rng(4).standard_normal(3_000_000, np.float32)
        double = far.define(DOUBLE)
        assert np.array_equal(double(x=large)["y"], 2 * large)
        ref = far.put(large)
        assert np.array_equal(ref.numpy(), large)
        assert np.array_equal(ref.numpy(slice(1, None, 3)), large[1::3])


def test_what_is_longer_than_staging_comes_in_pieces(daemon: Daemon) -> None:
    with djinn.connect(daemon.far_host, "small", staging_bytes=64 * 1024) as far:
        large = np.random.default_rng(5).standard_normal(200_000, np.float32)
        ref = far.put(large)
        assert np.array_equal(ref.numpy(), large)


def test_refs_stay_there(far: djinn.Session) -> None:
    program = far.define(DOUBLE)
    ref = far.put(np.arange(8, dtype=np.float32))
    for _ in range(600):  # more than the rings have slots
        ref = program(x=ref, outputs="ref")["y"]
        if ref.numpy(1) > 1e30:
            ref = far.put(np.arange(8, dtype=np.float32))
    assert np.array_equal(program(x=ref)["y"], 2 * ref.numpy())


def test_errors_are_those_of_djinnd(daemon: Daemon, far: djinn.Session) -> None:
    with djinn.connect(daemon.near_host, "near") as near:
        for session in (near, far):
            with pytest.raises(djinn.Error) as refused:
                session.define(REFUSED)
            assert "rand_like" in str(refused.value)
        x = np.ones(3, np.float32)
        told = []
        for session in (near, far):
            program = session.define(DOUBLE)
            ref = session.put(x)
            ref.release()
            with pytest.raises(djinn.Error) as failed:
                session.define(LINEAR)
            told.append(str(failed.value))
            assert np.array_equal(program(x=x)["y"], 2 * x)
        assert told[0] == told[1]


def test_text_is_generated_as_it_is_here(daemon: Daemon, byte_model: Path) -> None:
    arguments = ("generate", str(byte_model), "--prompt", "The memory", "--max-new-tokens", "40")
    here = ctl(daemon, "--host", daemon.near_host, *arguments)
    there = ctl(daemon, "--host", daemon.far_host, *arguments)
    assert here.code == there.code == 0, there
    assert there.out == here.out


def test_sessions_of_a_process_share_one_connection_and_it_ends_with_them() -> None:
    with running() as daemon:
        second = f"other = djinn.connect({daemon.far_host!r}, 'second')\nref ="
        with subprocess.Popen(
            [sys.executable, "-c", CHILD.replace("ref =", second), daemon.far_host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            assert daemon.sessions_named("child", "second") == 2
            between = [processes(name, daemon.near_host) for name in ("djinn-reach", "djinn-gate")]
            assert [len(found) for found in between] == [1, 1]
            child.kill()
        wait_until(lambda: daemon.sessions_named("child", "second") == 0, "its sessions end")
        for name in ("djinn-reach", "djinn-gate"):
            wait_until(lambda name=name: processes(name, daemon.near_host) == [], f"{name} ends")


@pytest.mark.parametrize("victim", ["djinn-reach", "djinn-gate"])
def test_who_is_killed_between_ends_the_session_and_leaves_nothing(victim: str) -> None:
    with running() as daemon:
        observer = djinn.connect(daemon.near_host, "observer", observer=True)
        session = djinn.connect(daemon.far_host, "victim")
        ref = session.put(np.zeros(1 << 20, np.uint8))
        (process,) = processes(victim, daemon.near_host)
        before = observer.status()["sessions"]
        os.kill(process, signal.SIGKILL)
        with pytest.raises(djinn.LostError, match="lost"):
            ref.numpy()
        wait_until(lambda: observer.status()["sessions"] == before - 1, "the far session ends")
        wait_until(lambda: observer.status()["memory_sessions_bytes"] == 0, "its memory is free")
        session.reconnect()
        assert np.array_equal(session.put(np.arange(4)).numpy(), np.arange(4))
        session.close()
        observer.close()


def test_a_worker_that_dies_is_a_pause(daemon: Daemon, far: djinn.Session) -> None:
    program = far.define(DOUBLE)
    ref = far.put(np.arange(16, dtype=np.float32))
    for _ in range(3):
        daemon.kill_worker()
        ref = program(x=ref, outputs="ref")["y"]
    assert np.array_equal(ref.numpy(), 8 * np.arange(16))


def test_a_djinnd_that_ends_is_told(layer: Path) -> None:
    with running() as daemon:
        session = djinn.connect(daemon.far_host, "left", reconnect_wait=None)
    with pytest.raises(djinn.LostError, match="lost"):
        session.load(layer)


def test_the_child_of_a_fork_has_a_connection_of_its_own(daemon: Daemon) -> None:
    session = djinn.connect(daemon.far_host, "parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            own = djinn.connect(daemon.far_host, "child")
            os.write(writer, own.put(np.arange(4)).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == np.arange(4).tobytes()
    os.waitpid(child, 0)
    assert np.array_equal(session.put(np.arange(3)).numpy(), np.arange(3))
    session.close()


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("exec:exit 3", "No djinn-gate answers at exec:exit 3. Is the package"),
        ("exec:echo no entry >&2", "No djinn-gate answers at .*: no entry"),
        ("exec:cat", "What answers at exec:cat is no djinn-gate"),
        (f"exec:{BIN}/djinn-gate --stdio --host unix:/nonexistent", "No djinnd answers"),
        ("ssh://127.0.0.1:1", "No djinn-gate answers at ssh://127.0.0.1:1|There is no ssh"),
    ],
)
def test_a_host_that_does_not_answer_is_told_with_what_it_said(
    daemon: Daemon, host: str, says: str
) -> None:
    assert daemon.far_host
    with pytest.raises(djinn.Error, match=says):
        djinn.connect(host, "lost")


RELAY = Path(__file__).parent / "gate_relay.py"
CUTS = [1, 7, 40, 150, 333, 600, 1000, 1501, 2500, 4000, 9000, 70_000, 1_100_000]


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_connection_that_ends_anywhere_ends_the_session_and_nothing_else(
    daemon: Daemon, direction: str
) -> None:
    large = np.arange(1 << 18, dtype=np.float32)
    ended = 0
    for cut in CUTS:
        relay = f"{sys.executable} {RELAY} {daemon.near_host}"
        host = f"exec:exec {relay} --cut {cut} {direction}"
        try:
            with djinn.connect(host, "cut", reconnect_wait=None) as session:
                double = session.define(DOUBLE)
                assert np.array_equal(double(x=large[:5])["y"], 2 * large[:5])
                assert np.array_equal(session.put(large).numpy(), large)
        except djinn.Error as error:
            assert isinstance(error, djinn.LostError | djinn.HandleError), error
            ended += 1
        wait_until(lambda: daemon.sessions_named("cut") == 0, f"cut at {cut}, its session ends")
    assert ended >= len(CUTS) - 2


CONNECTS = """
import sys
import djinn
print("begins", flush=True)
djinn.connect(sys.argv[1], "waits")
"""


def test_a_program_that_dies_while_it_connects_leaves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nobody")
    host = f"exec:exec cat {tmp_path}/nobody"  # waits, as an ssh that asks for a password
    with subprocess.Popen([sys.executable, "-c", CONNECTS, host], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"begins\n"
        wait_until(lambda: processes("cat", str(tmp_path)) != [], "it is asked for a password")
        child.kill()
    for name in ("cat", "djinn-reach"):
        wait_until(lambda name=name: processes(name, str(tmp_path)) == [], f"{name} ends")


def test_a_file_that_cannot_be_read_is_an_error_of_its_request_alone(
    far: djinn.Session, layer: Path, tmp_path: Path
) -> None:
    ref = far.put(np.arange(4))
    (tmp_path / "broken.safetensors").write_bytes(b"no header")
    with pytest.raises(djinn.Error):
        far.load(tmp_path / "broken.safetensors")
    assert far.load(layer).tensors
    assert np.array_equal(ref.numpy(), np.arange(4))
