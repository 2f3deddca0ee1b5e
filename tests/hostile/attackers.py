# SPDX-License-Identifier: Apache-2.0
"""The attackers of a siege: each a process of its own, with the rights of some user.

    attackers.py NAME HOST SEED SECONDS MODEL

It attacks until its time is over and then prints one line of JSON: how many attacks there were, how
many answers of which kind, and what it found. A finding is what must never be: bytes that somebody
else wrote, or an answer that does not come.
"""

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import blocks
import djinn
import graphs
import numpy as np
from backdoor import (
    CANCELLED,
    PUBLISHED,
    SLOT_BYTES,
    STAGING_AT,
    SUBMISSION_SLOTS,
    SUBMISSIONS_AT,
    Backdoor,
)
from djinn.shapes import evaluate
from meddler import Meddler
from private_daemon import BIN, Daemon, wait_until
from test_c_client import ConnectOptions, Failure, Library, OnToken, Prompt

SECRET = 0xA7  # what the bystanders' memory is full of, and no attacker ever sends
SECRET_RUN = bytes([SECRET]) * 12
ANSWER_S = 120  # no single attack takes that long, with worker deaths and back-off
PATIENCE_S = 5.0
STAGING_BYTES = 256 * 1024
HOARDING_SESSIONS = 4
REGRETTING_SESSIONS = 8
GRABBING_SESSIONS, GRABBING_S, GRAB_BYTES = 6, 2.0, (64, 1 << 20, 48 << 20)
RUN_ONCE, GENERATE, RELEASE_REFS = 2, 3, 6  # ipc::Operation
SUBMISSION = "<HHIQQQIIQQQ"  # ipc::Submission
DEADLINE = 8  # which of its fields
WITHIN = {"i": np.array([0, 1, 62, 63], np.int64)}
PROMPT = [256, *b"The "]
DISCONNECTED, NOT_FOUND = 500, 200  # djinn.h
WEIGHTS = """srg 1 "weights"
weight %w "w" : uint8[5000000]
%v = aten::slice.Tensor(%w, 0, 4900000, 5000000, 1)
%y = aten::bitwise_and.Scalar(%v, 255)
output %y
"""
DEFINED = """srg 1 "t"
input %x : float32[64]
input %i : int64[4]
%w = aten::neg(%x)
%y = aten::add.Tensor(%w, %x)
%z = aten::index_select(%y, 0, %i)
output %y, %z
"""


@dataclass
class Tally:
    attacks: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def look_for_secrets(self, what: str, arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            if SECRET_RUN in np.ascontiguousarray(array).tobytes():
                self.findings.append(f"bytes of somebody else in {name} of {what}")


def inputs(r: random.Random) -> dict[str, np.ndarray]:
    return {
        "x": np.array([r.uniform(-2, 2) for _ in range(graphs.ELEMENTS)], np.float32),
        "i": np.array([r.choice((0, 1, 63, 64, -1, 2**62)) for _ in range(4)], np.int64),
    }


class Attacker:
    """attack() is called again and again; a session that was ended is replaced."""

    def __init__(self, host: str, r: random.Random, model: str, tally: Tally) -> None:
        self.host, self.r, self.model, self.tally = host, r, model, tally
        self.enter()

    def enter(self) -> None:
        self.session = self.connect()

    def leave(self) -> None:
        self.session.close()

    def connect(self) -> djinn.Session:
        return djinn.connect(
            self.host, "attacker", staging_bytes=STAGING_BYTES, reconnect_wait=None
        )

    def renew(self) -> None:
        self.leave()
        self.enter()

    def attack(self) -> None:
        raise NotImplementedError


@contextlib.contextmanager
def patience(hang_up: Callable[[], None]) -> Iterator[None]:
    """Who lies may wait for what was given to nobody, until it hangs up."""
    timer = threading.Timer(PATIENCE_S, hang_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # or a descriptor that it still has is taken for one of the next session's


class ThroughABackDoor(Attacker):
    def enter(self) -> None:
        self.door = Backdoor(self.connect)
        self.session = self.door.session

    def leave(self) -> None:
        self.door.memory.release()
        super().leave()

    def last(self, operation: int) -> list[int]:
        """The fields of the last submission of an operation."""
        for index in range(self.door.word(PUBLISHED) - 1, -1, -1):
            at = self.door.slot(index)
            fields = list(struct.unpack(SUBMISSION, self.door.memory[at : at + SLOT_BYTES]))
            if fields[0] == operation:
                return fields
        raise AssertionError("nothing of the kind was submitted")

    def is_answered(self) -> bool:
        return is_over(self.session) or self.door.is_complete()


class Structural(Attacker):
    """Graphs whose structure lies, run once or defined first."""

    def attack(self) -> None:
        text = graphs.structural(self.r)
        given = {name: value for name, value in inputs(self.r).items() if f'"{name}"' in text}
        if self.r.random() < 0.5:
            results = self.session.run_once(text, **given)
        else:
            results = self.session.define(text)(**given)
        self.tally.look_for_secrets(text, results)


class Fast(Attacker):
    """Graphs in fast numerics whose nodes djinn's own kernels compute, of sizes that these may not
    have met. What reads nobody's memory gives the same bytes twice."""

    def attack(self) -> None:
        text = graphs.fast(self.r)
        program = self.session.define(text)
        bits = np.random.default_rng(self.r.randrange(2**32))
        given = {
            name: bits.integers(0, 120, [evaluate(size, ()) for size in sizes]).astype(dtype)
            for name, (dtype, sizes) in program.inputs.items()
        }
        first, second = program(**given), program(**given)
        self.tally.look_for_secrets(text, first)
        if any(first[name].tobytes() != second[name].tobytes() for name in first):
            self.tally.findings.append(f"other bytes in a second run of {text}")


class Joiners(ThroughABackDoor):
    """Generations that lie, whose steps are computed with those of bystanders."""

    def attack(self) -> None:
        try:
            with patience(self.door.hang_up):
                generator = djinn.Generator(self.session, self.model, numerics="fast")
                generator.generate([PROMPT], max_new_tokens=2, stop_tokens=[])
                rows = self.r.choice((1, 1, 2, 8))
                sequence = generator.sequence(rows=rows, capacity=self.r.choice((64, 300)))
                self.lie(blocks.Group(*sequence.handle[:2], rows))
        finally:
            self.renew()

    def lie(self, group: blocks.Group) -> None:
        fields = self.last(GENERATE)
        programs = struct.unpack_from(blocks.PROGRAMS, self.door.memory, STAGING_AT + fields[4])
        for run in range(fields[3] + 1, fields[3] + 4):
            block, prompt = blocks.lying_block(self.r, programs, group)
            self.door.memory[STAGING_AT + blocks.PROMPT_AT :][: len(prompt)] = prompt
            deadline = self.r.choice((0, 0, 0, 1, 2**63, 2**64 - 1))
            said = (GENERATE, 0, len(block), run, blocks.RUN_AT, 0, 0, 0, deadline, 0, 0)
            self.door.submit(struct.pack(SUBMISSION, *said), block, blocks.RUN_AT)
            if self.r.random() < 0.2:
                self.door.store(CANCELLED, self.r.choice((run, 2**64 - 1)))
            wait_until(self.is_answered, "an answer to a generation that lies", ANSWER_S)


class WireGraphs(ThroughABackDoor):
    """A graph's own bytes, as they lie in staging, changed at some places and submitted again."""

    def attack(self) -> None:
        good = self.session.run_once(good_graph(self.r), **(inputs(self.r) | WITHIN))
        self.tally.look_for_secrets("a good graph", good)
        self.submit_changed(self.last(RUN_ONCE))
        wait_until(self.is_answered, "an answer to a changed graph", ANSWER_S)
        self.tally.look_for_secrets("staging", {"all": bytes_of(self.door.memory[STAGING_AT:])})
        self.renew()

    def submit_changed(self, fields: list[int]) -> None:
        graph_at, graph_bytes = STAGING_AT + fields[6], fields[7]
        for _ in range(self.r.randrange(1, 6)):
            place = graph_at + self.r.randrange(graph_bytes)
            self.door.memory[place] = self.r.choice((0, 1, 2, 127, 128, 255, self.r.randrange(256)))
        fields[3] += 1  # the number of the run
        if self.r.random() < 0.3:
            fields[DEADLINE] = self.r.choice((1, 2**63, 2**64 - 1, time.monotonic_ns()))
        self.door.publish(struct.pack(SUBMISSION, *fields))


def is_over(session: djinn.Session) -> bool:
    try:
        session.status()
    except djinn.Error:
        return True
    return False


def bytes_of(view: memoryview) -> np.ndarray:
    return np.frombuffer(bytes(view), np.uint8)


def good_graph(r: random.Random) -> str:
    return DEFINED.replace("add.Tensor(%w, %x)", r.choice(GOOD))


GOOD = (
    "add.Tensor(%w, %x)",
    "mul.Tensor(%w, 2.5)",
    "as_strided(%w, [64], [1], 0)",
    "slice.Tensor(%w, 0, 0, 64, 1)",
    "clamp(%w, -1.0, 1.0)",
    "roll(%w, [3], [0])",
)


class Flips(ThroughABackDoor):
    """Rings, slots and staging change under runs and generations that are in flight."""

    def attack(self) -> None:
        stop = threading.Event()
        flipper = threading.Thread(target=self.flip, args=(stop,), daemon=True)
        flipper.start()
        try:
            with patience(self.door.hang_up):
                self.work()
        finally:
            stop.set()
            flipper.join()
            self.renew()

    def work(self) -> None:
        if self.r.random() < 0.5:
            numerics = self.r.choice(("exact", "fast"))
            generator = djinn.Generator(self.session, self.model, numerics=numerics)
            generator.generate([PROMPT] * 3, max_new_tokens=40, stop_tokens=[])
            return
        program = self.session.define(DEFINED)
        for _ in range(30):
            ref = program(**inputs(self.r), outputs="ref")["y"]
            self.tally.look_for_secrets("a ref", {"y": ref.numpy()})

    def flip(self, stop: threading.Event) -> None:
        r = random.Random(self.r.random())
        places = (
            lambda: r.randrange(0, 8 * 64),  # control lines
            lambda: SUBMISSIONS_AT + r.randrange(SUBMISSION_SLOTS * SLOT_BYTES),
            lambda: STAGING_AT + r.randrange(64 * 1024),
        )
        # Control lines end most sessions at once, so few attacks touch them.
        chosen = places if r.random() < 0.3 else places[1:]
        while not stop.wait(r.random() / 1000):
            self.door.memory[r.choice(chosen)()] = r.choice((0, 1, 255, r.randrange(256)))


class Regretters(ThroughABackDoor):
    """Submissions are taken back while another session's deadline is judged, and given again."""

    def attack(self) -> None:
        others = [Backdoor(self.connect) for _ in range(REGRETTING_SESSIONS)]
        stop = threading.Event()
        wavering = threading.Thread(target=self.waver, args=(others, stop), daemon=True)
        wavering.start()
        try:
            for run in range(1, 41):
                within = time.monotonic_ns() + self.r.choice((10**3, 10**6, 10**10))
                fields = [RELEASE_REFS, 0, 0, run, *[0] * 7]
                fields[DEADLINE] = within
                self.door.publish(struct.pack(SUBMISSION, *fields))
                for other in others:
                    other.ring()
            wait_until(self.is_answered, "an answer to each with a deadline", ANSWER_S)
        finally:
            stop.set()
            wavering.join()
            for other in others:
                other.session.close()
                other.memory.release()
            self.renew()

    def waver(self, others: list[Backdoor], stop: threading.Event) -> None:
        submission = struct.pack(SUBMISSION, RELEASE_REFS, 0, 0, 1, *[0] * 7)
        for other in others:
            other.memory[other.slot(0) :][:SLOT_BYTES] = submission
        while not stop.is_set():
            for word in (1, 0):
                for other in others:
                    other.store(PUBLISHED, word)


class Bells(ThroughABackDoor):
    """A bell that is full and blocks, and a listener that nobody reads, under work that others of
    the user cancel."""

    def attack(self) -> None:
        fill(self.door.bell)
        for end in (self.door.bell, self.door.listener):
            os.set_blocking(end, True)
        worker = threading.Thread(target=self.work, daemon=True)
        worker.start()
        for _ in range(8):
            cancel(self.host, self.session.id)
        worker.join(PATIENCE_S)
        self.door.hang_up()
        os.read(self.door.bell, 8)  # its own library may wait for a bell that takes no more rings
        worker.join(ANSWER_S / 2)
        if worker.is_alive():
            self.tally.findings.append("work with full bells does not end with its session")
        self.renew()

    def work(self) -> None:
        options = {"max_new_tokens": 200, "stop_tokens": []}
        with contextlib.suppress(djinn.Error):
            djinn.Generator(self.session, self.model).generate([PROMPT], **options)


def fill(bell: int) -> None:
    """To the largest count that an eventfd takes."""
    os.set_blocking(bell, False)
    with contextlib.suppress(BlockingIOError):
        os.write(bell, (2**64 - 2).to_bytes(8, "little"))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(bell, (1).to_bytes(8, "little"))


def cancel(host: str, session: str) -> None:
    """Whether or not there is a run to cancel."""
    command = [str(BIN / "djinnctl"), "cancel", session]
    environment = {**os.environ, "DJINN_HOST": host}
    subprocess.run(command, env=environment, capture_output=True, timeout=ANSWER_S / 2)


class Messages(Attacker):
    """Good conversations through a proxy of the attacker's own that changes what passes."""

    def enter(self) -> None:
        self.meddler = Meddler(self.host, random.Random(self.r.random()))
        self.session = djinn.connect(self.meddler.host, "attacker", reconnect_wait=None)

    def leave(self) -> None:
        super().leave()
        self.meddler.close()

    def attack(self) -> None:
        self.meddler.meddles = True
        try:
            with patience(self.meddler.hang_up):
                self.talk()
        finally:
            self.renew()

    def talk(self) -> None:
        self.session.define(good_graph(self.r))
        self.session.sequence(2, layers=2, kv_heads=2, head_dim=8, dtype="float32", capacity=64)
        self.session.load(Path(self.model) / "model.safetensors").close()
        self.session.status()
        self.session.sessions()
        self.session.models()


class Deserters(Attacker):
    """Clients that die in the midst of everything."""

    def attack(self) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(ANSWER_S)
            try:
                with djinn.connect(self.host, "deserter") as session:
                    threading.Timer(self.r.random() * 0.5, lambda: os.kill(os.getpid(), 9)).start()
                    while True:
                        djinn.Generator(session, self.model).generate([PROMPT], max_new_tokens=64)
            finally:
                os.kill(os.getpid(), 9)
        _, status = os.waitpid(child, 0)
        if os.WTERMSIG(status) == signal.SIGALRM:
            self.tally.findings.append("a client waited for its own death")


class Hoarders(Attacker):
    """Takes what its quotas give and sits on it, so that what is idle has to move."""

    def attack(self) -> None:
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(self.connect()) for _ in range(HOARDING_SESSIONS)]
            kept: list[Any] = []
            for session in sessions:
                with contextlib.suppress(djinn.Error):
                    while True:
                        kept.append(session.put(np.zeros(STAGING_BYTES // 8, np.float32)))
                        kept.append(session.sequence(4, **self.shape()))
            self.tally.look_for_secrets("hoarded refs", {"last": kept[0].numpy()})

    def shape(self) -> dict[str, Any]:
        capacity = self.r.choice((64, 1024, 4096))
        sizes = {"layers": 4, "kv_heads": 4, "head_dim": 64, "capacity": capacity}
        return {"dtype": "float32", **sizes}


class Grabbers(Attacker):
    """Sessions that all at once take a little more than their quotas give, and give it back."""

    def attack(self) -> None:
        seeds = [self.r.randrange(2**32) for _ in range(GRABBING_SESSIONS)]
        with concurrent.futures.ThreadPoolExecutor(len(seeds)) as pool:
            lost = [each for each in pool.map(self.grab, seeds) if each]
        if lost:
            raise lost[0]

    def grab(self, seed: int) -> djinn.LostError | None:
        r, kept = random.Random(seed), list[Any]()
        end = time.monotonic() + GRABBING_S
        with self.connect() as session:
            while time.monotonic() < end:
                try:
                    if kept and r.random() < 0.4:
                        kept.pop(r.randrange(len(kept))).release()
                    else:
                        kept.append(session.put(np.zeros(r.choice(GRAB_BYTES), np.uint8)))
                except djinn.LostError as error:
                    return error
                except djinn.Error:
                    self.tally.answers["refused"] += 1
        return None


class Files(ThroughABackDoor):
    """Files whose file system lies: of the sizes of the bystanders' model, and others."""

    def attack(self) -> None:
        lies = Path(self.model).with_name("lies")
        path = lies / self.r.choice(sorted(os.listdir(lies)))
        try:
            with patience(self.door.hang_up), contextlib.closing(self.session.load(path)) as model:
                weights = self.session.run_once(WEIGHTS, model)
                self.tally.look_for_secrets(path.name, weights)
                if path.name == "honest.ones.safetensors" and not (weights["y"] == 1).all():
                    self.tally.findings.append("an honest file's bytes are others")
        finally:
            self.renew()


class Survivor(threading.Thread):
    """Generates again and again; when its session is lost it opens all anew."""

    def __init__(self, host: str, model: str) -> None:
        super().__init__(daemon=True)
        self.host, self.model = host, model
        self.rounds = self.tokens = 0
        self.enough = threading.Event()
        self.wrong: list[str] = []
        self.open()
        self.expected = self.say()

    def open(self) -> None:
        raise NotImplementedError

    def say(self) -> list[int]:
        raise NotImplementedError

    def lost(self, error: Exception) -> bool:
        raise NotImplementedError

    def run(self) -> None:
        while not self.enough.is_set() and not self.wrong:
            try:
                self.open()
                self.say_again()
            except Exception as error:
                if not self.lost(error):
                    self.wrong.append(f"{type(self).__name__}: {error!r}")

    def say_again(self) -> None:
        while not self.enough.is_set():
            if self.say() != self.expected:
                self.wrong.append(f"{type(self).__name__}: other tokens")
                return
            self.rounds += 1


class InPython(Survivor):
    session: djinn.Session | None = None

    def open(self) -> None:
        self.session = self.session or djinn.connect(self.host, "python")
        self.generator = djinn.Generator(self.session, self.model)

    def say(self) -> list[int]:
        def hear(_: djinn.Token) -> None:
            self.tokens += 1

        options = {"max_new_tokens": 30, "stop_tokens": []}
        return list(self.generator.generate([PROMPT], on_token=hear, **options).tokens[0])

    def lost(self, error: Exception) -> bool:
        return isinstance(error, djinn.LostError | djinn.HandleError)


class InC(Survivor):
    """Through the C ABI."""

    library: Library | None = None

    def open(self) -> None:
        if self.library is None:
            self.library, self.client = Library(), ctypes.c_void_p()
            options = ConnectOptions(host=self.host.encode(), name=b"C")
            self.library("djinn_connect", ctypes.byref(options), ctypes.byref(self.client))
        else:
            self.library.functions.djinn_generator_close(self.generator)
        self.generator = ctypes.c_void_p()
        model = self.model.encode()
        self.library("djinn_generator_open", self.client, model, ctypes.byref(self.generator))

    def say(self) -> list[int]:
        prompt = Prompt((ctypes.c_int32 * len(PROMPT))(*PROMPT), len(PROMPT))
        heard: list[int] = []

        def hear(_: object, row: int, index: int, token: int) -> int:
            heard.append(token)
            self.tokens += 1
            return int(len(heard) == 30)

        self.library(
            *("djinn_generator_generate", self.generator, ctypes.byref(prompt)),
            *(ctypes.c_size_t(1), None, OnToken(hear), None, None),
        )
        return heard

    def lost(self, error: Exception) -> bool:
        return isinstance(error, Failure) and error.code in (DISCONNECTED, NOT_FOUND)


class Killers(Attacker):
    """A djinnd of their own that is killed at any moment: what its clients hear is what they would
    hear without that, or that their session is lost, and they go on with the next one."""

    def enter(self) -> None:
        self.place = tempfile.TemporaryDirectory(prefix="djinn-killed.")
        self.daemon = self.start_daemon()
        self.host = self.daemon.host
        self.session = self.daemon.observer
        self.survivors = [kind(self.host, self.model) for kind in (InPython, InC, InC)]
        for survivor in self.survivors:
            survivor.start()

    def start_daemon(self) -> Daemon:
        return Daemon(Path(self.place.name), ("--memory", str(512 << 20)))

    def attack(self) -> None:
        self.go_on(self.r.randrange(1, 60))
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.observer.close()
        self.daemon = self.start_daemon()
        self.session = self.daemon.observer

    def go_on(self, tokens: int) -> None:
        """Each of them says so many."""
        before = [survivor.tokens for survivor in self.survivors]

        def is_enough() -> bool:
            said = zip(self.survivors, before, strict=True)
            return self.wrong() != [] or all(now.tokens - was >= tokens for now, was in said)

        wait_until(is_enough, "clients of a djinnd that was killed go on", ANSWER_S / 2)
        self.tally.findings += self.wrong()

    def wrong(self) -> list[str]:
        return [what for survivor in self.survivors for what in survivor.wrong]

    def leave(self) -> None:
        for survivor in self.survivors:
            survivor.enough.set()
        for survivor in self.survivors:
            survivor.join(ANSWER_S / 4)
            if survivor.is_alive():
                self.tally.findings.append(f"a call of {type(survivor).__name__} does not end")
        self.daemon.stop()
        self.place.cleanup()


ATTACKERS = {
    "files": Files,
    "killers": Killers,
    "hoarders": Hoarders,
    "grabbers": Grabbers,
    "structural": Structural,
    "fast": Fast,
    "joiners": Joiners,
    "wire": WireGraphs,
    "flips": Flips,
    "regretters": Regretters,
    "bells": Bells,
    "messages": Messages,
    "deserters": Deserters,
}


def one_attack(attacker: Attacker, tally: Tally) -> None:
    tally.attacks += 1
    signal.alarm(ANSWER_S)
    try:
        attacker.attack()
        tally.answers["ok"] += 1
    except (djinn.Error, ValueError) as error:
        tally.answers[type(error).__name__] += 1
        if isinstance(error, djinn.LostError) or attacker.session.closed:
            wait_until(lambda: is_renewed(attacker), "a session after a refusal", ANSWER_S)
    finally:
        signal.alarm(0)


def is_renewed(attacker: Attacker) -> bool:
    """A user who has too many descriptors that do not close, on a mute file system, is refused; and
    a proxy hangs up where too many of its user's are on their way to pass on more."""
    try:
        attacker.renew()
    except (djinn.LimitError, djinn.LostError):
        return False
    return True


def silence(*_: object) -> None:
    raise TimeoutError(f"no answer within {ANSWER_S} s")


def main() -> None:
    name, host, seed, seconds, model = sys.argv[1:]
    faulthandler.enable()
    signal.signal(signal.SIGALRM, silence)
    tally, end = Tally(), time.monotonic() + float(seconds)
    attacker = ATTACKERS[name](host, random.Random(int(seed)), model, tally)
    try:
        while time.monotonic() < end and len(tally.findings) < 20:
            one_attack(attacker, tally)
    except (AssertionError, TypeError, TimeoutError) as error:
        tally.findings.append(f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(ANSWER_S)
        attacker.leave()
    print(json.dumps({"attacker": name, **vars(tally)}))


if __name__ == "__main__":
    main()
