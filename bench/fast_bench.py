# SPDX-License-Identifier: Apache-2.0
"""The figures of fast numerics: what a token of a ghost takes, of what reading its weights takes.

Nothing that computes a token can take less than the floor: the seconds in which as many threads
read as many bytes, by a sum of float32 that is measured between the arms.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator
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


def decode(name: str, make: Callable[[], Any]) -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(3, 500, (1, CONTEXT))
    with both(make) as (local, ghost):
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
        djinn.config.numerics = "exact"


def main() -> None:
    import torch

    with running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        torch.set_num_threads(THREADS)
        models = {
            "qwen_bfloat16": qwen,
            "qwen_float32": lambda: qwen().float(),
            "gpt2_float32": gpt2,
            "gpt2_bfloat16": lambda: gpt2().bfloat16(),
        }
        report(
            {
                f"fast/{name}": lambda name=name, make=make: decode(f"fast/{name}", make)
                for name, make in models.items()
            }
        )


if __name__ == "__main__":
    main()
