# SPDX-License-Identifier: Apache-2.0
"""How far the scheduler's predictions are off: of steps whose kind ran before, and of first ones.

Models of several shapes generate one after the other through one worker, which has seen none of
them. A step's prediction is what `djinnctl show --schedule` says that the queue was told before it.
The first shapes teach the worker the host's rates, and count for the warm figure alone. In exact
numerics, and likewise in fast ones: predict/fast_...
"""

import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import both, generate  # noqa: E402
from private_daemon import THREADS, Daemon, running  # noqa: E402
from report import Entry, entry, report  # noqa: E402
from schedule import decisions  # noqa: E402

TOKENS, CONTEXT, AGAIN = 40, 96, 3
LEARNED = 3
# Widths, layers and whether it is a Llama, from narrow and deep to wide and shallow.
SHAPES = [
    (256, 8, True),
    (1024, 2, True),
    (512, 6, False),
    (768, 4, True),
    (384, 12, False),
    (640, 6, True),
    (896, 4, False),
    (512, 10, True),
    (1024, 3, False),
    (320, 6, True),
]


def make(width: int, layers: int, is_llama: bool) -> Any:
    import transformers

    if not is_llama:
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64)
        )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            vocab_size=16384,
        )
    )


def last_steps(daemon: Daemon) -> list[tuple[float, float]]:
    """Predicted and measured seconds of the last generation's steps, its prompt's first."""
    steps = [one for one in decisions(daemon) if one["measured_ns"] > 0]
    long = [(one["predicted_ns"] / 1e9, one["measured_ns"] / 1e9) for one in steps]
    return long[-TOKENS:]


def off(predicted: float, measured: float) -> float:
    return abs(predicted - measured) / measured


def predictions(daemon: Daemon, name: str) -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(3, 500, (1, CONTEXT))
    cold: dict[str, list[float]] = {"prefill": [], "decode": []}
    warm: dict[str, list[float]] = {"prefill": [], "decode": []}
    for number, shape in enumerate(SHAPES):
        with both(lambda shape=shape: make(*shape)) as (_, ghost):
            for turn in range(1 + AGAIN):
                generate(ghost, ids, TOKENS)
                assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
                prefill, *decode = [off(*one) for one in last_steps(daemon)]
                if turn == 0 and number >= LEARNED:
                    cold["prefill"].append(prefill)
                    cold["decode"].append(decode[0])
                elif turn > 1:
                    warm["prefill"].append(prefill)
                    warm["decode"] += decode
    for phase in ("prefill", "decode"):
        counters = {
            "warm_off": statistics.median(warm[phase]),
            "cold_off": statistics.median(cold[phase]),
        }
        yield entry(f"{name}{phase}", 0.0, **counters)


# How the names of a pass begin, and its numerics.
PASSES = {"predict/": "exact", "predict/fast_": "fast"}


def with_a_daemon(name: str) -> list[Entry]:
    import djinn
    import torch

    torch.set_num_threads(THREADS)
    djinn.config.numerics = PASSES[name]
    with running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        return list(predictions(daemon, name))


def in_a_process(name: str) -> list[Entry]:
    """A process has one djinnd for its ghosts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(with_a_daemon, name).result()


def main() -> None:
    report({name: partial(in_a_process, name) for name in PASSES})


if __name__ == "__main__":
    main()
