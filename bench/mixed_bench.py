# SPDX-License-Identifier: Apache-2.0
"""Eight sessions of one user with mixed work, all at once: how evenly the lane's time is shared, by
what `djinnctl show --schedule` says was measured of each step."""

import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import generate, gpt2, minilm_directory, qwen  # noqa: E402
from private_daemon import running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402
from schedule import decisions  # noqa: E402
from spawned import spawned  # noqa: E402

UNIT = 0.020  # seconds, or a step where that takes longer (kernel/sched/queue.h)
VIRTUAL = 2  # nanoseconds of virtual time are so many of a session of the class normal
SECONDS, LOOK_S = 30.0, 0.05
# What each does, over and over: which model, how long a prompt, and how many tokens.
WORK: list[tuple[str, int, int]] = [
    ("gpt2", 16, 100),
    ("gpt2", 128, 1),
    ("gpt2", 512, 20),
    ("qwen", 16, 50),
    ("qwen", 128, 1),
    ("qwen", 64, 10),
    ("minilm", 16, 0),
    ("minilm", 128, 0),
]
SLOWEST = 3  # its steps cannot be paused, and take longest


def client(commands: Connection, directory: str, prompt: int, tokens: int) -> None:
    """Works from when it is told to until it is told None, in two threads of one session: while one
    looks at what it got, the other's run waits, so that the session always has work."""
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    load = transformers.AutoModelForCausalLM if tokens > 0 else transformers.AutoModel
    ghost = load.from_pretrained(directory, dtype="auto").eval()
    ids = torch.randint(3, 500, (1, prompt))
    there = ids.to(ghost.device)
    ends = threading.Event()

    def work() -> None:
        if tokens > 0:
            generate(ghost, ids, tokens)
        else:
            ghost(input_ids=there).last_hidden_state.cpu()

    @torch.no_grad()
    def keep_working() -> None:
        while not ends.is_set():
            work()

    with torch.no_grad():
        work()
        work()
    commands.send(os.getpid())
    if commands.recv() == "measure":
        commands.send(seconds_of(work) / (tokens + 1))
        commands.recv()
    threads = [threading.Thread(target=keep_working) for _ in range(2)]
    for thread in threads:
        thread.start()
    commands.recv()
    ends.set()
    for thread in threads:
        thread.join()


def jain(given: list[float]) -> float:
    """Jain, Chiu, Hawe, "A Quantitative Measure of Fairness", DEC-TR-301, 1984."""
    return sum(given) ** 2 / (len(given) * sum(one * one for one in given))


def saved(stack: ExitStack) -> dict[str, str]:
    """Where each model is."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bench."))
    directories = {"minilm": str(minilm_directory())}
    for name, make in (("gpt2", gpt2), ("qwen", qwen)):
        directories[name] = f"{directory}/{name}"
        make().save_pretrained(directories[name])
    return directories


def mixed(name: str = "mixed/eight") -> Iterator[Entry]:
    with running() as daemon, ExitStack() as stack:
        os.environ["DJINN_HOST"] = daemon.host
        directories = saved(stack)
        pipes = [
            spawned(stack, client, directories[model], prompt, tokens)
            for model, prompt, tokens in WORK
        ]
        clients = [pipe.recv() for pipe in pipes]
        by_pid = {one["pid"]: one["id"] for one in daemon.observer.sessions()}
        sessions = [by_pid[pid] for pid in clients]
        pipes[SLOWEST].send("measure")
        unit = max(UNIT, pipes[SLOWEST].recv())
        before = max(one["number"] for one in decisions(daemon))
        for pipe in pipes:
            pipe.send("begin")
        taken: dict[int, dict[str, Any]] = {}
        begun = time.monotonic()
        while time.monotonic() < begun + SECONDS:
            taken |= {one["number"]: one for one in decisions(daemon) if one["number"] > before}
            time.sleep(LOOK_S)  # style: between two looks
    yield entry(name, SECONDS, unit_ms=unit * 1e3, **fairness(taken, sessions, unit))


def fairness(
    taken: dict[int, dict[str, Any]], sessions: list[str], unit: float
) -> dict[str, float]:
    given: dict[str, float] = defaultdict(float)
    for one in taken.values():
        given[one["session"]] += one["measured_ns"]
    shares = [given[session] for session in sessions]
    behind = max(one["lag_ns"] for one in taken.values()) / VIRTUAL / 1e9
    return {
        "jain": jain(shares),
        "least_of_mean": min(shares) / statistics.mean(shares),
        "most_of_mean": max(shares) / statistics.mean(shares),
        "gap_units": behind / unit,
        "decisions": len(taken),
        "not_seen": max(taken) - min(taken) + 1 - len(taken),
    }


if __name__ == "__main__":
    report({"mixed/eight": mixed})
