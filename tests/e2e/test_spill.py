# SPDX-License-Identifier: Apache-2.0
"""Conversations whose memory went to disk go on as if nothing had happened: the same bits, and
nothing left behind."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import djinn
import pytest
from broken_disk import mounted
from command_line import ctl, events_of, memory_in_use
from conversation import Talk, talk_to
from mute_files import FileServer, require_fuse
from private_daemon import Daemon, open_files, running, wait_until

Said = list[list[bytes]]
TURNS = 10


def spilled_files(host: Daemon) -> int:
    """How many nameless files of the directory djinnd has open."""
    return open_files(host.process.pid, "/spilled/")


def take_turns(
    host: Daemon, model: Path, between: Callable[[], None] = lambda: None
) -> tuple[Said, int, int]:
    """What two conversations say in turns, and the bytes of all and of their groups."""
    said: Said = []
    with ExitStack() as stack:
        talks = [stack.enter_context(talk_to(host, model, name)) for name in ("one", "two")]
        for talk in talks * TURNS:
            said.append(talk.turn())
            between()
        sessions = ctl(host, "mem", "-j").items()
        (pool,) = [pool for pool in sessions if pool["pool"] == "sessions"]
        return said, memory_in_use(host), pool["evictable_bytes"]


@pytest.fixture(scope="module")
def undisturbed(byte_model: Path) -> tuple[Said, int, int]:
    with running() as host:
        seen = take_turns(host, byte_model)
        assert events_of(host, "sequence-spilled") == []
    return seen


@contextmanager
def short_of_memory(needed: int, group: int, directory: Path) -> Iterator[Daemon]:
    """With room for one group of the two."""
    with running("--memory", str(needed - group // 4), "--spill-directory", str(directory)) as host:
        yield host
        wait_until(lambda: host.status()["memory_sessions_bytes"] == 0, "all is released")
        wait_until(lambda: spilled_files(host) == 0, "the files are closed")
    assert list(directory.iterdir()) == []


def test_two_conversations_take_turns_where_one_has_room(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    expected, needed, both = undisturbed
    directory = tmp_path / "spilled"
    with short_of_memory(needed, both // 2, directory) as host:
        said, _, _ = take_turns(host, byte_model)
        assert said == expected
        assert len(events_of(host, "sequence-spilled")) >= TURNS
        assert len(events_of(host, "sequence-restored")) >= TURNS
        assert host.worker()["restarts"] == 0


def test_workers_that_are_killed_beside_a_group_on_disk_change_no_token(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    expected, needed, both = undisturbed
    directory = tmp_path / "spilled"
    with short_of_memory(needed, both // 2, directory) as host:
        killed = 0

        def kill() -> None:
            nonlocal killed
            if spilled_files(host):
                host.kill_worker()
                killed += 1

        assert take_turns(host, byte_model, kill)[0] == expected
        assert killed >= TURNS


def test_workers_that_are_killed_at_any_moment_change_no_token(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    """Also while a group is on its way. Which moments they are is chance."""
    expected, needed, both = undisturbed
    directory = tmp_path / "spilled"
    with short_of_memory(needed, both // 2, directory) as host:
        seen: list[Said] = []
        talk = threading.Thread(
            target=lambda: seen.append(take_turns(host, byte_model)[0]), daemon=True
        )
        talk.start()
        killed, met = 0, 0

        def another(than: int) -> int:
            """The worker, if it is ready and another one, or 0."""
            workers = host.status()["workers"]
            ready = (one["pid"] for one in workers if one["state"] == "ready")
            return next((pid for pid in ready if pid != than), 0)

        def wait_while_they_talk(what: Callable[[], bool], why: str) -> None:
            wait_until(lambda: what() or not talk.is_alive(), why)

        while talk.is_alive():
            files, worker = spilled_files(host), another(killed)
            if files != met and worker != 0:
                killed, met = worker, files
                os.kill(killed, signal.SIGKILL)
                wait_while_they_talk(lambda n=killed: another(n) != 0, "another worker is ready")
                # A group that kills three workers on its way would be left in memory.
                spilled = len(events_of(host, "sequence-spilled"))
                wait_while_they_talk(
                    lambda n=spilled: len(events_of(host, "sequence-spilled")) > n,
                    "a group is spilled",
                )
        assert seen == [expected]


def test_who_asks_for_memory_while_no_worker_is_there_waits_for_the_next(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    """What fits only where an idle group has gone to disk, which the next worker alone can do."""
    expected, needed, both = undisturbed
    directory = tmp_path / "spilled"
    with (
        short_of_memory(needed, both // 2, directory) as host,
        talk_to(host, byte_model, "one") as one,
    ):
        assert one.turn() == expected[0]
        all_else = needed - both // 8 - host.status()["memory_sessions_bytes"]
        host.kill_worker()  # its successor is warm, and that one's is not
        os.kill(host.worker_pid(), signal.SIGKILL)
        wait_until(lambda: host.worker()["state"] == "recovering", "there is no worker")
        with host.connect("two", staging_bytes=(all_else // 4096 + 1) * 4096):
            assert len(events_of(host, "sequence-spilled")) == 1
        wait_until(lambda: host.sessions_named("two") == 0, "what it held is free")
        assert one.turn() == expected[2]


@contextmanager
def idle_conversations(
    sizes: list[int], model: Path, directory: Path, after_ms: int = 200
) -> Iterator[tuple[Daemon, Talk]]:
    """Two, of which one fits below the first threshold; the other goes to disk when it is idle."""
    needed, both = sizes
    memory = ("--memory", str((needed - both // 2) * 11 // 10), "--spill-after-ms", str(after_ms))
    with (
        running(*memory, "--spill-directory", str(directory)) as host,
        talk_to(host, model, "one") as one,
        talk_to(host, model, "two"),
    ):
        yield host, one


def test_an_idle_conversation_gives_way_to_the_first_threshold(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    """A worker that dies beside it loses nothing."""
    expected, *sizes = undisturbed
    directory = tmp_path / "spilled"
    with idle_conversations(sizes, byte_model, directory) as (host, talk):
        assert talk.turn() == expected[0]
        wait_until(lambda: spilled_files(host) > 0, "its group is on disk")
        assert list(directory.iterdir()) == [], "the file has no name"
        host.kill_worker()
        assert talk.turn() == expected[2]


def test_a_full_disk_is_no_loss(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    expected, needed, both = undisturbed
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("NOT TESTED: a small file system needs the right to mount one")
    try:
        memory = str(needed - both // 8)
        with running("--memory", memory, "--spill-directory", str(tmp_path)) as host:
            with talk_to(host, byte_model, "one") as one, talk_to(host, byte_model, "two") as two:
                assert one.turn() == expected[0]
                with pytest.raises(djinn.Error, match="are needed"):
                    for _ in range(TURNS):
                        two.turn()
                two.session.close()
                assert one.turn() == expected[2]
            assert events_of(host, "sequence-spilled") == []
            assert host.worker()["restarts"] == 0
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@contextmanager
def on_a_broken_disk(tmp_path: Path) -> Iterator[tuple[Path, FileServer]]:
    """What goes to disk goes to it. It is whole until it is told otherwise."""
    require_fuse("a disk that fails")
    places = [tmp_path / name for name in ("spilled", "kept")]
    for place in places:
        place.mkdir()
    with mounted(*places) as disk:
        yield places[0], disk


def test_a_disk_that_loses_what_was_written_is_no_loss(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    """As a kernel does: writes succeed, and that they did not is told to who asks."""
    expected, *sizes = undisturbed
    with (
        on_a_broken_disk(tmp_path) as (directory, disk),
        idle_conversations(sizes, byte_model, directory, after_ms=100) as (host, one),
    ):
        disk.tell("lose")
        assert one.turn() == expected[0]
        tried = ("stays in memory", "spilled to disk")
        wait_until(lambda: any(t in host.log.read_text() for t in tried), "the disk is tried")
        disk.tell("mend")
        assert one.turn() == expected[2]


def test_what_cannot_be_read_back_is_an_error_until_it_can(
    undisturbed: tuple[Said, int, int], byte_model: Path, tmp_path: Path
) -> None:
    expected, *sizes = undisturbed
    with (
        on_a_broken_disk(tmp_path) as (directory, disk),
        idle_conversations(sizes, byte_model, directory) as (host, one),
    ):
        assert one.turn() == expected[0]
        wait_until(lambda: events_of(host, "sequence-spilled") != [], "its group is on disk")
        disk.tell("read")
        with pytest.raises(djinn.Error, match="spilled sequence group") as broken:
            one.sequence.reorder([1, 0, 3, 2])
        assert broken.value.code == "io"
        disk.tell("mend")
        assert one.turn() == expected[2]
        assert host.worker()["restarts"] == 0
