# SPDX-License-Identifier: Apache-2.0
"""From the start of `djinnctl generate` to its first token, of an exported 0.5B model that is
resident, with a prompt of 8 tokens, in fast and in exact numerics; beside it the same of `djinnctl
ps`, which only asks. And four prompts of that model in one call beside one after the other, in fast
numerics."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

import djinn  # noqa: E402
from ghost_models import qwen  # noqa: E402
from private_daemon import BIN, Daemon, running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 10
PROMPT = "9906,1917,11,358,1097,264,4128,1614"
ROWS = 4
NEW_TOKENS = 64


@contextmanager
def exported() -> Iterator[tuple[Daemon, str]]:
    """A djinnd, and the directory of a 0.5B model that was exported there."""
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory, running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        qwen().save_pretrained(directory)
        djinn.export(directory)
        yield daemon, directory


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
    with exported() as (daemon, directory):
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


def rows() -> Iterator[Entry]:
    given = [int(one) for one in PROMPT.split(",")]
    prompts = [[one + row for one in given] for row in range(ROWS)]
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "stop_tokens": []}
    with exported() as (_, directory), djinn.connect() as session:
        generator = djinn.Generator(session, directory, numerics="fast")

        def in_turn() -> list[list[int]]:
            return [generator.generate([one], **options).tokens[0] for one in prompts]

        def at_once() -> list[list[int]]:
            return generator.generate(prompts, **options).tokens

        assert in_turn() == at_once()
        for _ in range(REPETITIONS):
            alone, together = seconds_of(in_turn), seconds_of(at_once)
            yield entry("export/rows", together, of_one=alone / together)


if __name__ == "__main__":
    report({"export/first_token": first_token, "export/rows": rows})
