# SPDX-License-Identifier: Apache-2.0
"""Owners by principal: who comes over TLS is whom their certificate names, and has nothing to do
with others who come, nor with the users of the machine."""

import grp
import os
import pwd
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import djinn
import numpy as np
import pytest
from command_line import Ended, ctl, events_of
from gates import Door, door
from other_user import User
from private_daemon import Daemon, running, wait_until
from safetensors.numpy import save_file
from small_graphs import DOUBLE
from systemd_double import Systemd, write_config

ANN, BEN = "spiffe://lab/ann", "spiffe://lab/ben"
HERE, ANNS, BENS = "", "djinn://ann", "djinn://ben"
GROUP = grp.getgrgid(os.getegid()).gr_name
MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running("--gate-socket") as one:
        yield one


@contextmanager
def two_come(folder: Path, djinnd: str) -> Iterator[Door]:
    with door(folder, djinnd) as one:
        one.enrol("ann", "ann")
        one.enrol("ben", "ben")
        yield one


@pytest.fixture
def box(daemon: Daemon, tmp_path: Path) -> Iterator[Door]:
    with two_come(tmp_path, daemon.near_host) as one:
        yield one


def by(daemon: Daemon, host: str, *words: str) -> Ended:
    return ctl(daemon, *(("--host", host) if host else ()), *words)


def seen(daemon: Daemon, host: str, *words: str) -> set[str]:
    return {item["id"] for item in by(daemon, host, *words, "-j").items()}


def connect(daemon: Daemon, host: str, name: str) -> djinn.Session:
    return djinn.connect(host or daemon.near_host, name, staging_bytes=MIB)


def doubles(session: djinn.Session) -> bool:
    x = np.arange(4, dtype=np.float32)
    return bool((session.run_once(DOUBLE, x=x)["y"] == x + x).all())


@pytest.mark.usefixtures("box")
def test_principals_see_their_own_sessions_alone_and_a_worker_is_each_ones(daemon: Daemon) -> None:
    with ExitStack() as stack:
        sessions = {}
        for host in (HERE, ANNS, BENS):
            sessions[host] = stack.enter_context(connect(daemon, host, "theirs"))
            assert doubles(sessions[host])
        ids = {host: session.id for host, session in sessions.items()}
        for host in (ANNS, BENS):
            others = {ids[other] for other in ids if other != host}
            listed = seen(daemon, host, "sessions")
            assert ids[host] in listed
            assert not listed & others
            workers = by(daemon, host, "status", "-j").items()[0]["workers"]
            assert len(workers) == 1
            for other in others:
                for verb in ("terminate", "cancel", "show"):
                    refused = by(daemon, host, verb, other)
                    assert refused.code != 0
                    assert "There is no" in refused.err, refused
        assert all(map(doubles, sessions.values())), "nobody was ended"
        # Who runs djinnd sees all, by name.
        owners = {item["id"]: item["owner"] for item in by(daemon, HERE, "sessions", "-j").items()}
        assert (owners[ids[ANNS]], owners[ids[BENS]]) == (ANN, BEN)
        assert owners[ids[HERE]] not in (ANN, BEN)
        workers = {one["owner"]: one["pid"] for one in daemon.status()["workers"]}
        assert {ANN, BEN, owners[ids[HERE]]} <= workers.keys()
        assert len(set(workers.values())) == len(workers)
        begun = [event["text"] for event in events_of(daemon, "session-new")]
        assert f"session {ids[ANNS]} of principal {ANN} is welcome" in begun


@pytest.mark.usefixtures("box")
def test_principals_see_their_own_models_alone(daemon: Daemon, tmp_path: Path) -> None:
    """Of the same bytes, too: nobody's show that another has them."""
    file = tmp_path / "model.safetensors"
    save_file({"w": np.ones((64, 32), np.float32)}, file)
    with ExitStack() as stack:
        for host in (HERE, ANNS, BENS):
            session = stack.enter_context(connect(daemon, host, "opens"))
            session.load([file], label=host or "here")
        labels = {
            host: {item["name"] for item in by(daemon, host, "ps", "-j").items()}
            for host in (ANNS, BENS)
        }
        assert labels == {ANNS: {ANNS}, BENS: {BENS}}
        owners = {item["name"]: item["owner"] for item in by(daemon, HERE, "ps", "-j").items()}
        assert (owners[ANNS], owners[BENS]) == (ANN, BEN)
        (of_ben,) = seen(daemon, BENS, "ps")
        for verb in ("unload", "evict", "pin", "show"):
            refused = by(daemon, ANNS, verb, of_ben)
            assert refused.code != 0, verb
        pinned = by(daemon, BENS, "pin", of_ben)
        assert "remote.pin_quota is 0" in pinned.err


@pytest.mark.usefixtures("box")
def test_a_principal_is_no_administrator(daemon: Daemon) -> None:
    for words in (("drain",), ("gc",), ("resume",)):
        refused = by(daemon, ANNS, *words)
        assert refused.code != 0
        assert "Only administrators" in refused.err, words
    assert by(daemon, ANNS, "status", "-j").items()[0]["users"] == []


def test_what_names_a_principal_on_the_socket_of_programs_is_refused(
    daemon: Daemon, tmp_path: Path
) -> None:
    """Though it be djinn-gate, and its user's own djinnd."""
    place = tmp_path / "run"
    place.mkdir()
    for name in ("djinnd.sock", "gate.sock"):
        (place / name).symlink_to(daemon.directory / "djinnd.sock")
    before = len(events_of(daemon, "session-refused"))
    with (
        two_come(tmp_path, f"unix:{place}/djinnd.sock"),
        pytest.raises(djinn.Error, match="named by djinn-gate alone") as refused,
    ):
        djinn.connect(ANNS, "names a principal")
    assert refused.value.code == "permission_denied"
    assert len(events_of(daemon, "session-refused")) == before + 1


def test_who_names_no_principal_on_the_gates_socket_is_refused(daemon: Daemon) -> None:
    with pytest.raises(djinn.Error, match="This socket is for djinn-gate") as refused:
        djinn.connect(f"unix:{daemon.directory}/gate.sock", "a program")
    assert refused.value.code == "invalid_argument"
    assert (daemon.directory / "gate.sock").stat().st_mode & 0o777 == 0o600


def test_without_that_socket_nobody_is_served_and_the_gate_says_why(tmp_path: Path) -> None:
    with running() as daemon, two_come(tmp_path, daemon.near_host) as box:
        with pytest.raises(djinn.Error, match="no djinnd that listens for gates") as refused:
            djinn.connect(ANNS, "too early")
        assert str(daemon.directory) not in str(refused.value)
        assert "--gate-socket" in box.log()


def test_a_gate_may_be_told_that_who_comes_is_its_user(tmp_path: Path) -> None:
    with running() as daemon, door(tmp_path, daemon.near_host, as_user=True) as box:
        box.enrol("ann", "ann")
        with connect(daemon, ANNS, "mine") as session, connect(daemon, HERE, "mine") as here:
            listed = by(daemon, ANNS, "sessions", "-j").items()
            owners = {item["id"]: item["owner"] for item in listed}
            assert owners[session.id] == owners[here.id]


def test_by_a_passed_socket_a_principals_models_outlive_a_restart(
    systemd: Systemd, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": np.ones((64, 32), np.float32)}, file)
    systemd.listen_for_gates()
    systemd.start("--user", "--threads", "1")
    systemd.hear("READY=1")
    with two_come(tmp_path, systemd.host):
        with djinn.connect(ANNS, "opens", staging_bytes=MIB) as session:
            session.load([file], label="ann's", keep_alive=3600).close()
        systemd.hear_until(lambda: any("model" in name for name in systemd.store))
        assert systemd.stop() == 0
        systemd.start("--user", "--threads", "1")
        systemd.hear("READY=1")
        (owner,) = {item["owner"] for item in ctl(systemd, "ps", "-j").items()}
        assert owner.isdigit(), "nobody has said the name yet"
        assert ctl(systemd, "--host", BENS, "ps", "-j").items() == []
        (model,) = ctl(systemd, "--host", ANNS, "ps", "-j").items()
        assert (model["name"], model["owner"]) == ("ann's", ANN)
        (model,) = ctl(systemd, "ps", "-j").items()
        assert model["owner"] == ANN
    assert systemd.stop() == 0


@pytest.fixture
def bounded(place: Path) -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("NEEDS ROOT, to be a service's administrator")
    write_config(place, '[remote]\nsessions_max = 2\nconnections_max = 4\nmemory_quota = "32MiB"\n')
    with running("--root", str(place), "--gate-socket", socket_group=GROUP) as daemon:
        yield daemon


def test_quotas_are_each_principals_and_refusals_say_which_and_whose(
    bounded: Daemon, tmp_path: Path
) -> None:
    with two_come(tmp_path, bounded.near_host), ExitStack() as stack:
        first, second = (stack.enter_context(connect(bounded, ANNS, "one")) for _ in range(2))
        with pytest.raises(djinn.Error, match=r"allows 2 at a time.*remote\.sessions_max") as full:
            connect(bounded, ANNS, "three")
        assert full.value.code == "limit_exceeded"
        bens = stack.enter_context(connect(bounded, BENS, "ben's"))
        kept = []
        with pytest.raises(djinn.Error, match=r"of 32\.0 MiB \(remote\.memory_quota\)") as full:
            for _ in range(8):
                for session in (first, second):
                    kept.append(session.put(np.zeros(4 * MIB, np.uint8)))
        assert full.value.code == "quota_exceeded"
        assert bens.put(np.zeros(16 * MIB, np.uint8)).numpy().nbytes == 16 * MIB
        wait_until(lambda: bounded.status()["sessions"] == 4, "who was refused is gone")
        observers = [
            stack.enter_context(djinn.connect(ANNS, "looks", observer=True)) for _ in range(2)
        ]
        with pytest.raises(djinn.Error, match=r"4 connections.*remote\.connections_max"):
            djinn.connect(ANNS, "looks", observer=True)
        observers[0].close()
        wait_until(lambda: bounded.sessions_named("looks") == 1, "one has gone")
        with djinn.connect(BENS, "looks", observer=True):
            pass
        told = [event["text"] for event in events_of(bounded, "session-refused")]
        assert told == [f"a session of principal {ANN} is refused: limit_exceeded"] * 2
        (memory,) = events_of(bounded, "memory-refused")
        assert f"of principal {ANN}" in memory["text"]


def test_a_user_of_the_machine_sees_nothing_of_a_principals(
    bounded: Daemon, tmp_path: Path
) -> None:
    bounded.directory.chmod(0o711)
    nobody = User("nobody", pwd.getpwnam("nobody").pw_uid, GROUP)
    with two_come(tmp_path, bounded.near_host), connect(bounded, ANNS, "ann's") as anns:
        with nobody.acting():
            listed = seen(bounded, HERE, "sessions")
            refused = by(bounded, HERE, "terminate", anns.id)
            told = ctl(bounded, "events", "-j").out.decode()
        assert anns.id not in listed
        assert "There is no session" in refused.err
        assert ANN not in told
        assert doubles(anns)


def test_a_principal_that_is_mapped_is_that_user_and_no_administrator(
    place: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("NEEDS ROOT, to become another user")
    nobody = User("nobody", pwd.getpwnam("nobody").pw_uid, GROUP)
    write_config(place, f'[remote.map]\n"{ANN}" = "nobody"\n"{BEN}" = "no-such-user"\n')
    options = ("--root", str(place), "--gate-socket", "--admin-group", GROUP)
    with running(*options, socket_group=GROUP) as daemon:
        daemon.directory.chmod(0o711)
        with two_come(tmp_path, daemon.near_host), connect(daemon, ANNS, "far") as far:
            with nobody.acting():
                here = connect(daemon, HERE, "here")
            assert {far.id, here.id} <= seen(daemon, ANNS, "sessions")
            owners = {item["owner"] for item in by(daemon, ANNS, "sessions", "-j").items()}
            assert owners == {"nobody"}
            assert "Only administrators" in by(daemon, ANNS, "drain").err
            assert by(daemon, ANNS, "terminate", here.id).code == 0
            assert f"by principal {ANN}" in daemon.log.read_text()
            with pytest.raises(djinn.Error, match="a user who is not there") as refused:
                connect(daemon, BENS, "mapped to nobody")
            assert refused.value.code == "permission_denied"
            here.close()
