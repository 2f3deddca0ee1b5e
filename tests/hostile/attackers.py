# SPDX-License-Identifier: Apache-2.0
"""The attackers of a siege: each a process of its own, with the rights of some user.

    attackers.py NAME HOST SEED SECONDS MODEL

It attacks until its time is over and then prints one line of JSON: how many attacks there were, how
many answers of which kind, and what it found. A finding is what must never be: bytes that somebody
else wrote, or an answer that does not come.
"""

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import djinn
import graphs
import numpy as np
from backdoor import PUBLISHED, SLOT_BYTES, STAGING_AT, SUBMISSION_SLOTS, SUBMISSIONS_AT, Backdoor
from meddler import Meddler
from private_daemon import BIN, wait_until

SECRET = 0xA7  # what the bystanders' memory is full of, and no attacker ever sends
SECRET_RUN = bytes([SECRET]) * 12
ANSWER_S = 120  # no single attack takes that long, with worker deaths and back-off
PATIENCE_S = 5.0
STAGING_BYTES = 256 * 1024
HOARDING_SESSIONS = 4
RUN_ONCE = 2  # ipc::Operation
WITHIN = {"i": np.array([0, 1, 62, 63], np.int64)}
PROMPT = [256, *b"The "]
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


class ThroughABackDoor(Attacker):
    def enter(self) -> None:
        self.door = Backdoor(self.connect)
        self.session = self.door.session

    def leave(self) -> None:
        self.door.memory.release()
        super().leave()


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


class WireGraphs(ThroughABackDoor):
    """A graph's own bytes, as they lie in staging, changed at some places and submitted again."""

    def attack(self) -> None:
        good = self.session.run_once(good_graph(self.r), **(inputs(self.r) | WITHIN))
        self.tally.look_for_secrets("a good graph", good)
        self.submit_changed(self.last_graph())
        wait_until(self.is_answered, "an answer to a changed graph", ANSWER_S)
        if not is_over(self.session):  # else its memory is mapped no more
            self.tally.look_for_secrets("staging", {"all": bytes_of(self.door.memory[STAGING_AT:])})
        self.renew()

    def last_graph(self) -> list[int]:
        """The fields of the last submission that ran a graph once."""
        for index in range(self.door.word(PUBLISHED) - 1, -1, -1):
            at = self.door.slot(index)
            fields = list(struct.unpack("<HHIQQ5Q", self.door.memory[at : at + SLOT_BYTES]))
            if fields[0] == RUN_ONCE:
                return fields
        raise AssertionError("no graph was run")

    def submit_changed(self, fields: list[int]) -> None:
        graph_at, graph_bytes = STAGING_AT + fields[6], fields[7]
        for _ in range(self.r.randrange(1, 6)):
            place = graph_at + self.r.randrange(graph_bytes)
            self.door.memory[place] = self.r.choice((0, 1, 2, 127, 128, 255, self.r.randrange(256)))
        fields[3] += 1  # the number of the run
        self.door.publish(struct.pack("<HHIQQ5Q", *fields))

    def is_answered(self) -> bool:
        return is_over(self.session) or self.door.is_complete()


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
            generator = djinn.Generator(self.session, self.model)
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


ATTACKERS = {
    "hoarders": Hoarders,
    "structural": Structural,
    "wire": WireGraphs,
    "flips": Flips,
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
            attacker.renew()
    finally:
        signal.alarm(0)


def silence(*_: object) -> None:
    raise TimeoutError(f"no answer within {ANSWER_S} s")


def main() -> None:
    name, host, seed, seconds, model = sys.argv[1:]
    signal.signal(signal.SIGALRM, silence)
    tally, end = Tally(), time.monotonic() + float(seconds)
    attacker = ATTACKERS[name](host, random.Random(int(seed)), model, tally)
    try:
        while time.monotonic() < end and len(tally.findings) < 20:
            one_attack(attacker, tally)
    except (AssertionError, TypeError, TimeoutError) as error:
        tally.findings.append(f"{type(error).__name__}: {error}")
    print(json.dumps({"attacker": name, **vars(tally)}))


if __name__ == "__main__":
    main()
