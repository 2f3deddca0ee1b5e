# SPDX-License-Identifier: Apache-2.0
"""A djinnd under siege: attackers of one user, bystanders of the same one and of another.

    siege.py SECONDS [--seed N] [--only ATTACKER]...

Ends with 1 if anything was found: a bystander that saw other bytes or an error, bytes of somebody
else in an attacker's hands, a worker that died of a signal, a djinnd that died or does not
answer, something that is still held when all have gone.
"""

import argparse
import json
import os
import pwd
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import numpy as np
from attackers import ATTACKERS
from lying_files import lying
from other_user import User
from private_daemon import BIN, ROOT, Daemon, running, wait_until
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
AT_ONCE = 3  # attackers: more of them on few cores attack less
SILENCE_S = 150.0  # longer than an attacker waits for an answer
TURN_S = 20.0  # then others take their places
# Little memory, so that what is idle moves to disk and back.
SETTINGS = (
    "--memory",
    str(1500 << 20),
    "--session-quota",
    str(256 << 20),
    "--spill-after-ms",
    "500",
)
SPILL_BYTES = 24 << 20
HELD = ("sessions", "memory_sessions_bytes", "descriptors_closing")


@dataclass
class Report:
    attacks: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    bystanders: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def add_attacker(self, said: dict[str, Any]) -> None:
        name = said["attacker"]
        self.attacks[name] = self.attacks.get(name, 0) + said["attacks"]
        counts = self.answers.setdefault(name, {})
        for answer, count in said["answers"].items():
            counts[answer] = counts.get(answer, 0) + count
        self.findings += [f"{name}: {finding}" for finding in said["findings"]]

    def add_bystander(self, who: str, said: dict[str, Any]) -> None:
        self.bystanders.append({"who": who, **said})
        self.findings += [f"{who}: {finding}" for finding in said["findings"]]


def users() -> tuple[User, User]:
    """Two of Debian's users without rights, in one group."""
    group = "nogroup"
    return tuple(User(name, pwd.getpwnam(name).pw_uid, group) for name in ("nobody", "daemon"))


class Siege:
    def __init__(self, daemon: Daemon, model: Path, seconds: float, seed: int) -> None:
        self.daemon, self.model, self.seconds = daemon, model, seconds
        self.random = random.Random(seed)
        self.attackers = [name for name in ATTACKERS if name != "files" or can_lie()]
        self.attacking, self.standing_by = users()
        self.report = Report()

    def start(self, user: User, program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / program), *arguments]
        return subprocess.Popen(
            command, user=user.uid, group=user.group, extra_groups=[], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
            env={**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def attack(self, names: list[str], seconds: float) -> None:
        """Some at once, then the next, each with seeds of its own."""
        seconds = min(seconds, TURN_S)
        for first in range(0, len(names), AT_ONCE):
            turn = names[first : first + AT_ONCE]
            processes = [self.start_attacker(name, seconds) for name in turn]
            for name, process in zip(turn, processes, strict=True):
                said = self.answer_of(name, process, seconds)
                if said:
                    self.report.add_attacker(said)

    def start_attacker(self, name: str, seconds: float) -> subprocess.Popen[str]:
        seed = str(self.random.randrange(2**32))
        return self.start(
            self.attacking, "attackers.py", name, self.daemon.host, seed, str(seconds),
            str(self.model),
        )  # fmt: skip

    def answer_of(
        self, name: str, process: subprocess.Popen[str], seconds: float
    ) -> dict[str, Any]:
        try:
            said, errors = process.communicate(timeout=seconds + SILENCE_S)
            return dict(json.loads(said.splitlines()[-1]))
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            process.kill()
            _, errors = process.communicate()
            ended = f"{name} ended with {process.returncode} and without a word"
            self.report.findings.append(f"{ended}: {error!r} {errors[-2000:]}")
            return {}

    def hold(self, names: list[str]) -> Report:
        turns = max(1, -(-len(names) // AT_ONCE))
        rounds = max(1, round(self.seconds / (turns * TURN_S)))
        each = self.seconds / (turns * rounds)
        bystanders = {
            user.name: self.start(
                user, "bystanders.py", self.daemon.host, str(self.seconds), str(self.model)
            )
            for user in (self.attacking, self.standing_by)
        }
        for _ in range(rounds):
            self.random.shuffle(names)
            self.attack(names, each)
        for who, process in bystanders.items():
            said = self.answer_of(f"bystander {who}", process, self.seconds)
            if said:
                self.report.add_bystander(f"bystander {who}", said)
        self.look_at_the_end()
        return self.report

    def look_at_the_end(self) -> None:
        """All have gone but the observer."""

        def is_empty() -> bool:
            status = self.daemon.status()
            return status["sessions"] == 1 and all(status[key] == 0 for key in HELD[1:])

        try:
            wait_until(is_empty, "nothing is held")
        except AssertionError as error:
            status = self.daemon.status()
            held = {key: status[key] for key in HELD}
            self.report.findings.append(f"{error}: {held}")
        self.report.findings += deaths_in(self.daemon.log.read_text())


def deaths_in(log: str) -> list[str]:
    """Workers that a signal ended, which is not djinnd's own."""
    lines = [line for line in log.splitlines() if re.search(r"worker.*(died|killed|signal)", line)]
    return [line for line in lines if "SIGKILL" not in line]


@contextmanager
def small_file_system(directory: Path) -> Iterator[Path]:
    """So small that what goes to disk fills it."""
    directory.mkdir()
    size = f"size={SPILL_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "spilled", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def can_lie() -> bool:
    """Whether there may be files whose file system lies."""
    return Path("/dev/fuse").exists()


@contextmanager
def lies(place: Path) -> Iterator[None]:
    """Beside the model: files of its sizes, and files of other ones."""
    shown = place / "shown"
    shown.mkdir()
    shutil.copy(place / "bytes" / "model.safetensors", shown)
    save_file({"w": np.ones(5_000_000, np.uint8)}, shown / "ones.safetensors")
    with lying(place / "lies", shown):
        yield


@contextmanager
def besieged(seconds: float, seed: int) -> Iterator[Siege]:
    """A djinnd for members of a group, and what all of its users may read."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-siege.")))
        place.chmod(0o755)
        for name in ("djinnd", "djinn-worker", "djinn-loader"):
            shutil.copy(BIN / name, place)
        shutil.copytree(ROOT / "models" / "bytes", place / "bytes")
        spilled = stack.enter_context(small_file_system(place / "spilled"))
        if can_lie():
            stack.enter_context(lies(place))
        else:
            sys.stderr.write("NOT TRIED: files that lie, for want of /dev/fuse\n")
        settings = (*SETTINGS, "--spill-directory", str(spilled))
        daemon = stack.enter_context(running(*settings, programs=place, socket_group="nogroup"))
        daemon.directory.chmod(0o755)
        yield Siege(daemon, place / "bytes", seconds, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", action="append", choices=sorted(ATTACKERS))
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("a siege needs root, to become other users")
    with besieged(options.seconds, options.seed) as siege:
        report = siege.hold(list(options.only or siege.attackers))
    print(json.dumps({"seed": options.seed, **vars(report)}, indent=1))
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
