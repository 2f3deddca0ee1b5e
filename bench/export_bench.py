# SPDX-License-Identifier: Apache-2.0
"""From the start of `djinnctl generate` to its first token, of an exported 0.5B model that is
resident, with a prompt of 8 tokens, in fast and in exact numerics; beside it the same of `djinnctl
ps`, which only asks."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

import djinn  # noqa: E402
from ghost_models import qwen  # noqa: E402
from private_daemon import BIN, Daemon, running  # noqa: E402
from report import Entry, entry, report  # noqa: E402

REPETITIONS = 10
PROMPT = "9906,1917,11,358,1097,264,4128,1614"


def until_said(daemon: Daemon, *words: str) -> float:
    """Seconds from before the process is there to the first byte that it writes."""
    command = [str(BIN / "djinnctl"), *words, "-H", daemon.host]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "it said nothing"
        said = time.perf_counter()
        process.stdout.read()
    assert process.returncode == 0
    return said - begun


def first_token() -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory, running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        qwen().save_pretrained(directory)
        djinn.export(directory)
        say = ("generate", directory, "--tokens", PROMPT, "--max-new-tokens", "4", "--numerics")
        arms = {"fast": (*say, "fast"), "exact": (*say, "exact"), "ps": ("ps",)}
        until_said(daemon, "load", directory)
        for _ in range(3):  # programs are admitted, and their runs recorded
            for words in arms.values():
                until_said(daemon, *words)
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(REPETITIONS):
            for name, words in arms.items():
                seconds[name].append(until_said(daemon, *words))
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    yield entry(
        "export/first_token",
        median["fast"],
        first_token_s=median["fast"],
        first_token_exact_s=median["exact"],
        ps_s=median["ps"],
    )


if __name__ == "__main__":
    report({"export/first_token": first_token})
