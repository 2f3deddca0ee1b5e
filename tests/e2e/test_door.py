# SPDX-License-Identifier: Apache-2.0
"""djinn://NAME: a djinnd on another machine over TLS, for whom its gate's authority vouches."""

import socket
from collections.abc import Iterator
from pathlib import Path

import djinn
import numpy as np
import pytest
from command_line import ctl
from gates import Door, door
from private_daemon import Daemon, running, wait_until
from small_graphs import DOUBLE


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running("--gate-socket") as one:
        yield one


@pytest.fixture
def box(daemon: Daemon, tmp_path: Path) -> Iterator[Door]:
    with door(tmp_path, daemon.near_host) as one:
        yield one


def refusal(host: str = "djinn://box") -> str:
    with pytest.raises(djinn.Error) as refused:
        djinn.connect(host, "refused")
    return str(refused.value)


def test_a_program_is_served_over_tls_as_it_is_here(
    daemon: Daemon, box: Door, byte_model: Path
) -> None:
    box.enrol("ann")
    with djinn.connect("djinn://box", "over tls", staging_bytes=32 << 20) as far:
        large = np.random.default_rng(4).standard_normal(3_000_000, np.float32)
        assert np.array_equal(far.define(DOUBLE)(x=large)["y"], 2 * large)
    arguments = ("generate", str(byte_model), "--prompt", "The memory", "--max-new-tokens", "40")
    here = ctl(daemon, "--host", daemon.near_host, *arguments)
    there = ctl(daemon, "--host", "djinn://box", *arguments)
    assert here.code == there.code == 0, there
    assert there.out == here.out
    assert "spiffe://lab/ann has come from 127.0.0.1" in box.log()


def test_who_was_revoked_is_put_out_and_is_told_why(box: Door) -> None:
    box.enrol("ann")
    box.enrol("ben", "other")
    with djinn.connect("djinn://box", "ann") as ann, djinn.connect("djinn://other", "ben") as ben:
        box.revoke("ann")
        wait_until(lambda: "spiffe://lab/ann has gone" in box.log(), "ann is put out")
        with pytest.raises(djinn.Error):
            ann.put(np.zeros(4, np.float32))
        assert "revoked" in refusal()
        assert np.array_equal(ben.put(np.ones(4, np.float32)).numpy(), np.ones(4, np.float32))


def test_an_error_says_what_is_wrong_with_a_profile(
    box: Door,
) -> None:
    assert "There is no profile of djinn://box" in refusal()
    profile = box.enrol("ann")
    good = profile.read_text()
    profile.chmod(0o644)
    assert "others may read it" in refusal()
    profile.chmod(0o600)
    for change, why in (
        (good.replace("address: ", "at: "), "does not say where"),
        (good.replace("/djinn-gate/", "/gate/"), "names no gate"),
        (good.replace("PRIVATE KEY", "KEY"), "no private key"),
        (good.replace("CERTIFICATE", "TEXT"), "no certificate"),
        ("", "does not say where"),
    ):
        profile.write_text(change)
        assert why in refusal(), change
        assert "djinnctl gate enrol" in refusal()
    profile.write_text(good.replace("djinn-gate/", "djinn-gate/other-"))
    assert "certificate of somebody else" in refusal()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        profile.write_text(good.replace(f"127.0.0.1:{box.port}", address))
        assert f"No djinn-gate answers at djinn://box ({address}): Connection refused." in refusal()
    profile.write_text(good)
    with djinn.connect("djinn://box", "good"):
        pass


def test_a_gate_of_another_authority_is_not_believed(
    daemon: Daemon, box: Door, tmp_path: Path
) -> None:
    """One who took over its address, for instance."""
    profile = box.enrol("ann")
    with door(tmp_path / "other", daemon.near_host) as other:
        theirs = other.home / "djinn" / "hosts" / "box.pem"
        theirs.parent.mkdir(parents=True)
        theirs.write_text(
            profile.read_text().replace(f"127.0.0.1:{box.port}", f"127.0.0.1:{other.port}")
        )
        theirs.chmod(0o600)
        assert "no authority of this side vouches for" in refusal()


def test_noise_costs_others_nothing(box: Door) -> None:
    box.enrol("ann")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\x40\x00" + b"x" * 99):
        with socket.create_connection(("127.0.0.1", box.port)) as one:
            one.sendall(noise)
            one.shutdown(socket.SHUT_WR)
            while one.recv(4096):
                pass
    with djinn.connect("djinn://box", "after"):
        pass
    lines = [line for line in box.log().splitlines() if "spiffe" not in line]
    assert lines == [], "no line for who is not known"
