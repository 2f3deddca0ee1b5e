# SPDX-License-Identifier: Apache-2.0
"""Clients die, stop and misbehave: what they held comes back, and nobody else notices."""

import collections
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from backdoor import (
    CLIENT_WAITING,
    COMPLETION_SLOTS,
    COMPLETIONS,
    CONSUMED,
    PAGE,
    PUBLISHED,
    SLOT_BYTES,
    STAGING_AT,
    SUBMISSION_SLOTS,
    TOKENS_PER_COMPLETION,
    Backdoor,
)
from command_line import ctl
from long_runs import matmuls
from private_daemon import Daemon, children_of, wait_until
from safetensors.torch import save_file

VISITOR = Path(__file__).parent / "visitor.py"


def descriptors(pid: int) -> collections.Counter[str]:
    """What a process has open, without the numbers that differ from one to the next."""
    names: collections.Counter[str] = collections.Counter()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names[re.sub(r"\d+", "", os.readlink(fd))] += 1
        except FileNotFoundError:  # closed meanwhile
            continue
    return names


def mappings(pid: int) -> collections.Counter[tuple[str, str, int]]:
    """What a process has mapped of memory files and devices: permissions, name, bytes. Its heap is
    the allocator's business."""
    found: collections.Counter[tuple[str, str, int]] = collections.Counter()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if inode != "0":
            start, end = (int(part, 16) for part in span.split("-"))
            found[permissions, name[0], end - start] += 1
    return found


@dataclass(frozen=True)
class Baseline:
    """What must be the same again when a client has gone."""

    memory: tuple[int, ...]
    counts: tuple[int, ...]
    processes: int
    worker: int
    descriptors: dict[str, collections.Counter[str]]
    mappings: dict[str, collections.Counter[tuple[str, str, int]]]

    @staticmethod
    def of(daemon: Daemon) -> "Baseline":
        status = daemon.status()
        worker = status["workers"][0]
        pids = {"djinnd": daemon.process.pid, "worker": worker["pid"]}
        return Baseline(
            memory=tuple(
                status[f"memory_{what}_bytes"]
                for what in ("granted", "models", "sessions", "lanes")
            ),
            counts=tuple(
                status[what] for what in ("sessions", "models", "programs", "descriptors")
            ),
            processes=len(children_of(daemon.process.pid)),
            worker=worker["pid"],
            descriptors={name: descriptors(pid) for name, pid in pids.items()},
            mappings={name: mappings(pid) for name, pid in pids.items()},
        )

    def alone(self) -> bool:
        """djinnd, its worker and the one that it keeps in reserve; nobody but who looks is there,
        and what others had has come back: threads of djinnd's free it after they have gone."""
        return self.counts[0] == 1 and self.memory[2] == 0 and self.processes == 3

    def difference(self, other: "Baseline") -> str:
        lines = []
        for field in self.__dataclass_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            if isinstance(mine, dict):
                for name in mine:
                    lines += [f"{name} lost {mine[name] - theirs[name]}"] * (
                        mine[name] != theirs[name]
                    )
                    lines += [f"{name} kept {theirs[name] - mine[name]}"] * (
                        mine[name] != theirs[name]
                    )
            elif mine != theirs:
                lines.append(f"{field}: {mine} became {theirs}")
        return "\n".join(lines)


def settled(
    look: Callable[[], Baseline], quiet: Callable[[Baseline], bool], looks: int
) -> Baseline:
    """What is seen so many times in a row, and quiet."""
    seen: list[Baseline] = []

    def is_settled() -> bool:
        seen.append(look())
        return quiet(seen[-1]) and seen[-looks:] == [seen[-1]] * looks

    wait_until(is_settled, "djinnd is quiet")
    return seen[-1]


def expect_again(
    baseline: Baseline, look: Callable[[], Baseline], moment: str, deadline_s: float
) -> None:
    """Threads of djinnd's close and free what a client had, in their own time."""
    seen = [baseline]

    def is_there() -> bool:
        seen[0] = look()
        return seen[0] == baseline

    try:
        wait_until(is_there, "the baseline", deadline_s)
    except AssertionError:
        pytest.fail(f"killed at {moment!r}:\n{baseline.difference(seen[0])}")


class Killer:
    """Starts visitors and kills them. A visitor's file is another one each time, as its time of
    change tells, so that each visitor loads it."""

    def __init__(self, daemon: Daemon, file: Path, model: Path) -> None:
        self.daemon = daemon
        self.file = file
        self.model = model
        self.lines: list[str] = []
        self.visit(seed=0, lines=None)
        self.baseline = self.settled_baseline()

    def start(self, seed: int) -> subprocess.Popen[str]:
        os.utime(self.file)
        command = [sys.executable, str(VISITOR), self.daemon.host, str(seed)]
        return subprocess.Popen(
            [*command, str(self.file), str(self.model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def visit(self, seed: int, lines: int | None) -> str:
        """Kills a visitor after so many lines, or at its end; returns the last one."""
        said = [""]
        with self.start(seed) as visitor:
            assert visitor.stdout is not None
            while len(said) <= (lines or 10_000) and said[-1] != "done":
                line = visitor.stdout.readline()
                assert line, f"the visitor ended after {said[-3:]}"
                said.append(line.strip())
            visitor.kill()
        self.lines = said if lines is None else self.lines
        return said[-1]

    def forget_idle_models(self) -> None:
        """A model that nobody leases stays until its memory is wanted; the visitor's file is the
        only one, besides the language model, that is loaded."""
        for model in self.daemon.observer.models():
            if model["label"] == self.file.stem and model["leases"] == 0:
                try:
                    self.daemon.observer.raw.unload_model(int(model["id"], 16))
                except djinn.Error:  # still on its way in or out
                    continue

    def look(self) -> Baseline:
        self.forget_idle_models()
        return Baseline.of(self.daemon)

    def settled_baseline(self) -> Baseline:
        """Once nobody is there but the observer, no load is under way, and nothing changes."""
        return settled(self.look, lambda seen: seen.alone() and seen.counts[1] == 1, 20)

    def check(self, moment: str) -> None:
        expect_again(self.baseline, self.look, moment, 20)


@pytest.fixture
def killer(daemon: Daemon, byte_model: Path, tmp_path: Path) -> Killer:
    file = tmp_path / "large.safetensors"
    save_file({"weight": torch.zeros(16 << 20, dtype=torch.float32)}, file)
    return Killer(daemon, file, byte_model)


def kill_often(killer: Killer, kills: int) -> None:
    random_moment = random.Random(8)
    met = set()
    for seed in range(1, kills + 1):
        moment = killer.visit(seed, random_moment.randrange(1, len(killer.lines)))
        met.add(moment)
        killer.check(moment)
    assert len(met) >= min(kills // 4, 8), met
    assert killer.daemon.worker()["restarts"] == 0


@pytest.mark.ci
def test_20_killed_clients_leave_nothing(killer: Killer) -> None:
    kill_often(killer, 20)


@pytest.mark.full
def test_200_killed_clients_leave_nothing(killer: Killer) -> None:
    kill_often(killer, 200)


# --- clients that stop


GREEDY = {"max_new_tokens": 48, "stop_tokens": []}
PROMPT = [256, *b"The neighbour "]


@dataclass
class Neighbour:
    """A well-behaved client and what it says when nobody disturbs it."""

    session: djinn.Session
    generator: djinn.Generator
    expected: djinn.Generated

    def check(self) -> None:
        assert self.generator.generate([PROMPT], **GREEDY) == self.expected


@pytest.fixture
def neighbour(daemon: Daemon, byte_model: Path) -> Iterator[Neighbour]:
    with daemon.connect("neighbour") as session:
        generator = djinn.Generator(session, byte_model)
        one = Neighbour(session, generator, generator.generate([PROMPT], **GREEDY))
        before = daemon.worker()
        yield one
        one.check()
        after = daemon.worker()
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


@pytest.mark.ci
def test_a_stopped_client_harms_nobody(
    daemon: Daemon, killer: Killer, neighbour: Neighbour
) -> None:
    for seed, lines in ((1, 3), (2, 9), (3, 17), (4, 25)):
        with killer.start(seed) as visitor:
            assert visitor.stdout is not None
            for _ in range(lines):
                visitor.stdout.readline()
            os.kill(visitor.pid, signal.SIGSTOP)
            for _ in range(3):
                neighbour.check()
            os.kill(visitor.pid, signal.SIGCONT)
            rest = iter(visitor.stdout.readline, "")
            assert "done" in (line.strip() for line in rest), "the stopped client goes on"
            visitor.kill()


@pytest.mark.ci
def test_a_client_that_reads_no_tokens_holds_up_itself_alone(
    daemon: Daemon, neighbour: Neighbour, byte_model: Path
) -> None:
    """More completions than its ring has slots: the worker waits for it, and serves others."""
    rows, tokens = 32, 300
    with daemon.connect("slow") as slow:
        generator = djinn.Generator(slow, byte_model)
        prompts = [[256, 65 + row] for row in range(rows)]
        options = {"max_new_tokens": tokens, "stop_tokens": []}
        seen = []

        def hear(token: djinn.Token) -> None:
            seen.append(token)
            if len(seen) == 1:
                wait_until(self_is_held_up, "the worker waits for this client")
                neighbour.check()

        def self_is_held_up() -> bool:
            (report,) = (r for r in daemon.observer.sessions() if r["id"] == slow.id)
            return report["steps"] >= COMPLETION_SLOTS // (rows // TOKENS_PER_COMPLETION) - 1

        result = generator.generate(prompts, on_token=hear, **options)
    assert [len(row) for row in result.tokens] == [tokens] * rows
    assert len(seen) == rows * tokens


# --- clients that break the protocol


class Intruder(Backdoor):
    """A session of a daemon that is used behind its library's back."""

    def __init__(self, daemon: Daemon, staging_bytes: int = 64 * 1024) -> None:
        super().__init__(lambda: daemon.connect("intruder", staging_bytes=staging_bytes))
        self.daemon = daemon

    def is_gone(self) -> bool:
        return all(r["id"] != self.session.id for r in self.daemon.observer.sessions())

    def is_answered(self) -> bool:
        """The last submission is complete, or the session was ended."""
        return self.is_complete() or self.is_gone()

    def runs(self) -> bool:
        return any(
            r["running"] for r in self.daemon.observer.sessions() if r["id"] == self.session.id
        )

    def jam(self) -> None:
        """Whoever reads or writes what it shares of its bells sleeps for good."""
        with suppress(BlockingIOError):
            os.read(self.bell, 8)
        os.write(self.bell, (2**64 - 2).to_bytes(8, "little"))
        self.share_blocking()

    def share_blocking(self) -> None:
        for fd in (self.bell, self.listener):
            os.set_blocking(fd, True)

    def unjam(self) -> None:
        for fd in (self.bell, self.listener):
            os.set_blocking(fd, False)
        os.read(self.bell, 8)

    def leave(self) -> None:
        self.memory.release()
        self.session.close()
        wait_until(self.is_gone, "the intruder is gone")


@pytest.fixture
def intruder(daemon: Daemon) -> Iterator[Intruder]:
    one = Intruder(daemon)
    yield one
    one.leave()


BREACHES = {
    "garbage on the socket": lambda i: os.write(i.socket, b"this is no message"),
    "an empty message on the socket": lambda i: os.write(i.socket, bytes(8)),
    "a segment table of 4 G segments": lambda i: os.write(i.socket, b"\xff" * 64),
    "more published than slots": lambda i: i.store(PUBLISHED, SUBMISSION_SLOTS + 1),
    "2^64 - 1 published": lambda i: i.store(PUBLISHED, -1),
    "2^63 published": lambda i: i.store(PUBLISHED, 2**63),
    "more consumed than published": lambda i: i.store(CONSUMED, i.word(COMPLETIONS) + 1),
    "2^64 - 1 consumed": lambda i: i.store(CONSUMED, -1),
    "a run number that was used": lambda i: i.submit(bytes(SLOT_BYTES), b""),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_of_the_protocol_ends_its_session_only(
    neighbour: Neighbour, intruder: Intruder, breach: str
) -> None:
    BREACHES[breach](intruder)
    intruder.ring()
    wait_until(intruder.is_gone, "the session is ended", 10)
    with pytest.raises(djinn.Error):
        intruder.session.status()


def submission(
    operation: int, run: int, block: tuple[int, int], *others: int, reserved: int = 0
) -> bytes:
    """others: program, graph offset, graph bytes, model, and what is reserved."""
    words = (*others, 0, 0, 0, 0, 0)[:5]
    return struct.pack("<HHIQQ5Q", operation, reserved, block[1], run, block[0], *words)


ODD = (0, 1, 7, 63, 64, 1024, 1025, 4096, 65535, 65536, 65537, 2**31, 2**32 - 1, 2**32, 2**63)


def random_submission(r: random.Random, run: int) -> bytes:
    def odd() -> int:
        return r.choice((*ODD, 2**64 - 1, 2**64 - r.randrange(70_000), r.randrange(70_000)))

    operation = r.choice((*range(10), 0xFFFF))
    others = (odd() for _ in range(5))
    return submission(operation, run, (odd(), odd() % 2**32), *others, reserved=odd() % 2**16)


def assault(daemon: Daemon, count: int, seed: int) -> int:
    """Submits descriptors whose every field is chosen by chance, over blocks of such bytes, and
    blocks of real runs with some bytes changed. Returns how many sessions that took."""
    r = random.Random(seed)
    intruder, sessions, run, real = None, 0, 0, []
    for _ in range(count):
        if intruder is None or intruder.is_gone():
            if intruder is not None:
                intruder.leave()
            intruder, sessions = Intruder(daemon), sessions + 1
            real = real_submissions(intruder)
            run = 1000
        run += 1
        if r.random() < 0.5:
            block = bytes(r.choice((0, 1, 255, r.randrange(256))) for _ in range(256))
            intruder.submit(random_submission(r, run), block)
        else:
            descriptor, block, at = r.choice(real)
            changed = bytearray(block)
            for _ in range(r.randrange(1, 4)):
                changed[r.randrange(len(block))] = r.choice((0, 1, 127, 128, 255))
            fields = struct.unpack("<HHIQQ5Q", descriptor)
            intruder.submit(
                submission(fields[0], run, (at, fields[2]), *fields[5:]), bytes(changed), at
            )
        wait_until(intruder.is_answered, "an answer to a strange submission", 20)
    assert intruder is not None
    intruder.leave()
    return sessions


def real_submissions(intruder: Intruder) -> list[tuple[bytes, bytes, int]]:
    """Descriptor, block and the block's place of a run, a write, a read and a release."""
    source = 'srg 1 "t"\ninput %x : float32[8]\n%y = aten::add.Tensor(%x, %x)\noutput %y\n'
    program = intruder.session.define(source)
    x = np.ones(8, np.float32)
    ref = program(x=x, outputs="ref")["y"]
    program(x=ref)
    other = intruder.session.put(x)
    other.numpy()
    other.release()
    found = []
    for index in range(intruder.word(PUBLISHED)):
        at = intruder.slot(index)
        descriptor = bytes(intruder.memory[at : at + SLOT_BYTES])
        fields = struct.unpack("<HHIQQ5Q", descriptor)
        block_at = STAGING_AT + fields[4]
        block = bytes(intruder.memory[block_at : block_at + max(fields[2], 1)])
        found.append((descriptor, block, fields[4]))
    intruder.kept = (ref, program)
    return found


INVALID_ARGUMENT, POISONED = 100, 203


def write_part(intruder: Intruder, run: int, slot: int, offset: int, whole: int) -> int:
    """The code that the write of a page of ones as a part of a new ref ends with."""
    intruder.memory[STAGING_AT + PAGE :][:PAGE] = bytes([1]) * PAGE
    block = struct.pack("<IIQQQQ", slot, 1, PAGE, PAGE, offset, whole)
    intruder.submit(submission(5, run, (0, len(block))), block)
    wait_until(intruder.is_answered, "an answer to a part")
    return intruder.last_error()


def test_parts_of_a_write_leave_nothing_out(intruder: Intruder) -> None:
    whole = 3 * PAGE
    assert write_part(intruder, 1, 0, 0, whole) == 0
    assert write_part(intruder, 2, 0, 2 * PAGE, whole) == INVALID_ARGUMENT
    assert write_part(intruder, 3, 0, PAGE, whole) == POISONED
    for run, offset in enumerate((0, PAGE, 2 * PAGE), 4):
        assert write_part(intruder, run, 1, offset, whole) == 0
    assert write_part(intruder, 7, 2, 0, whole) == 0
    assert write_part(intruder, 8, 2, 0, whole) == INVALID_ARGUMENT, "the slot is taken"


@pytest.mark.ci
def test_descriptors_and_blocks_of_chance_bytes_harm_nobody(
    daemon: Daemon, neighbour: Neighbour
) -> None:
    for seed in range(3):
        assert assault(daemon, 150, seed) >= 1
        neighbour.check()


@pytest.mark.full
def test_many_descriptors_and_blocks_of_chance_bytes_harm_nobody(
    daemon: Daemon, neighbour: Neighbour
) -> None:
    for seed in range(100, 140):
        assault(daemon, 400, seed)
        neighbour.check()


# --- clients that use their descriptors against those who share them


def test_a_client_that_jams_its_bells_and_is_cancelled_freezes_nobody(
    daemon: Daemon, neighbour: Neighbour
) -> None:
    """Its lane is busy, and looks at no bell until the run is over."""
    intruder = Intruder(daemon, staging_bytes=4 << 20)
    program = intruder.session.define(matmuls(400))
    x = np.eye(640, dtype=np.float32)
    program(x=x)  # from now on it waits for no memory

    def run_until_cancelled() -> None:
        with suppress(djinn.LostError):
            program(x=x)

    run = threading.Thread(target=run_until_cancelled)
    run.start()
    wait_until(intruder.runs, "it runs")
    intruder.jam()
    assert run.is_alive(), "the bell is full while the lane is busy"
    assert ctl(daemon, "cancel", intruder.session.id).code == 0
    assert daemon.status()["sessions"] >= 2
    neighbour.check()
    run.join(60)
    intruder.unjam()
    intruder.leave()


def test_a_listener_that_takes_no_ring_holds_up_nobody(
    neighbour: Neighbour, intruder: Intruder
) -> None:
    """It seems to sleep, so each of its completions rings; more than the kernel keeps."""
    intruder.share_blocking()
    intruder.store(CLIENT_WAITING, 1)
    for run in range(1, 1001):
        intruder.publish(submission(0, run, (0, 0)))
        wait_until(intruder.is_answered, "a completion")
    neighbour.check()


def test_a_worker_that_takes_over_jammed_bells_serves_the_others(
    daemon: Daemon, byte_model: Path, intruder: Intruder
) -> None:
    with daemon.connect("neighbour") as session:
        generator = djinn.Generator(session, byte_model)
        expected = generator.generate([PROMPT], **GREEDY)
        intruder.jam()
        daemon.kill_worker()
        assert generator.generate([PROMPT], **GREEDY) == expected


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/proc/self/maps", "/tmp", "/proc"])
def test_a_file_that_is_no_model_is_refused_and_leaves_nothing(
    daemon: Daemon, neighbour: Neighbour, path: str
) -> None:
    before = daemon.status()
    with daemon.connect("odd files") as session, pytest.raises(djinn.Error):
        session.raw.open_files("odd", [path], None, False, None)
    wait_until(
        lambda: all(
            daemon.status()[key] == before[key]
            for key in ("models", "memory_models_bytes", "sessions", "descriptors")
        ),
        "nothing is left",
    )
