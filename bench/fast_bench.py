# SPDX-License-Identifier: Apache-2.0
"""The figures of fast numerics: what a token of a ghost takes, of what reading its weights takes.

Nothing that computes a token can take less than the floor: the seconds in which as many threads
read as many bytes, by a sum of float32 that is measured between the arms.
"""

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import both, generate, gpt2, qwen, token_seconds  # noqa: E402
from private_daemon import THREADS, running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 5
CONTEXT = 128
READS = 5


def bytes_of(model: Any) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def float32(model: Any) -> Any:
    return model.float()


def bfloat16(model: Any) -> Any:
    return model.bfloat16()


@dataclass(frozen=True)
class Arm:
    """A model, and the options of the djinnd that it is on."""

    make: Callable[[], Any]
    cast: Callable[[Any], Any]
    options: tuple[str, ...] = ()


ARMS = {
    "fast/qwen_bfloat16": Arm(qwen, bfloat16),
    "fast/qwen_float32": Arm(qwen, float32),
    "fast/gpt2_float32": Arm(gpt2, float32),
    "fast/gpt2_bfloat16": Arm(gpt2, bfloat16),
    "fast/qwen_bfloat16_avx2": Arm(qwen, bfloat16, ("--isa", "avx2")),
}


def decode(name: str) -> Iterator[Entry]:
    import djinn
    import torch

    torch.set_num_threads(THREADS)
    arm = ARMS[name]
    ids = torch.randint(3, 500, (1, CONTEXT))
    with both(lambda: arm.cast(arm.make())) as (local, ghost):
        read = torch.ones(bytes_of(local) // 4)
        seconds: dict[str, list[float]] = {"exact": [], "fast": [], "floor": []}

        def measure(numerics: str) -> None:
            djinn.config.numerics = numerics
            seconds[numerics].append(token_seconds(ghost, ids))
            seconds["floor"] += [seconds_of(read.sum) for _ in range(READS)]

        for numerics in ("exact", "fast"):
            djinn.config.numerics = numerics
            generate(ghost, ids, 2)
            assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        for _ in range(REPETITIONS):
            measure("exact")
            measure("fast")
            exact, fast = seconds["exact"][-1], seconds["fast"][-1]
            floor = statistics.median(seconds["floor"][-2 * READS :])
            yield entry(name, fast, of_floor=fast / floor, of_exact=fast / exact)


def decode_with_a_daemon(name: str) -> list[Entry]:
    with running(*ARMS[name].options) as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        return list(decode(name))


def in_a_process(name: str) -> list[Entry]:
    """A process has one djinnd for its ghosts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(decode_with_a_daemon, name).result()


def main() -> None:
    report({name: partial(in_a_process, name) for name in ARMS})


if __name__ == "__main__":
    main()
