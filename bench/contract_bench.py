# SPDX-License-Identifier: Apache-2.0
"""The row contract of fast numerics: sessions have the same bytes (tokens, keys and values of every
layer) alone and among others that come and go, with 1, 2 and 3 threads, while prompts are paused
and the worker is killed; a model in float32, and the same in bfloat16. `differing` counts the
positions at which a session had others, `differing_prompts` those of them that prompts have, and
`kills`, `seen_paused` and `together` how often there was what could have made a difference."""

import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from private_daemon import Daemon, running  # noqa: E402
from report import Entry, entry, report  # noqa: E402
from schedule import decisions  # noqa: E402
from spawned import spawned  # noqa: E402

SESSIONS, TOKENS, PROMPT = 8, 1000, 300
SHORT = (3, 40, 150)  # tokens of generations before the long one: who comes and goes
KILLS, BETWEEN_KILLS_S = 5, 2.0
ALONE, CROWDS = 2, (1, 2, 3)  # threads

Positions = list[bytes]  # a digest of each


def model(dtype: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(1)
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=4096,
        )
    )
    return made.to(getattr(torch, dtype))


def prompt_of(seed: int) -> int:
    """Tokens, of each session another number."""
    return PROMPT + seed


def client(commands: Connection, directory: str, seed: int) -> None:
    """Answers each number of tokens with what it has at each position."""
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 4000, (1, prompt_of(seed)), generator=draw)
    while (tokens := commands.recv()) is not None:
        cache = transformers.DynamicCache()
        torch.manual_seed(seed)
        said = ghost.generate(
            ids.to(ghost.device),
            past_key_values=cache,
            do_sample=True,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        ).cpu()
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        commands.send(positions_of(said, cache))


def positions_of(said: Any, cache: Any) -> Positions:
    """The last token's keys and values were never wanted."""
    import torch

    layers = [one.cpu() for layer in cache.layers for one in (layer.keys, layer.values)]
    kept = torch.stack(layers, 0).movedim(-2, 0)[: said.shape[1] - 1].contiguous()
    rows = zip(said[0, 1:].tolist(), kept.view(torch.uint8).numpy(), strict=True)
    return [hashlib.blake2b(b"%d " % token + row.tobytes()).digest() for token, row in rows]


def differing(found: Positions, expected: Positions) -> list[int]:
    """Numbers of positions. As many are expected as are found."""
    pairs = enumerate(zip(found, expected, strict=True))
    return [number for number, (a, b) in pairs if a != b]


class Sessions:
    def __init__(self, stack: ExitStack, directory: str, threads: int) -> None:
        self.daemon: Daemon = stack.enter_context(running(threads=threads))
        os.environ["DJINN_HOST"] = self.daemon.host
        self.pipes = [spawned(stack, client, directory, seed) for seed in range(SESSIONS)]

    def generate(self, number: int, tokens: int) -> Positions:
        self.pipes[number].send(tokens)
        return list(self.pipes[number].recv())

    def come_and_go(self, number: int, alone: list[Positions]) -> list[bool]:
        """Of each position that differs, whether it is the prompt's."""
        order = random.Random(number).sample(SHORT, len(SHORT))
        return [
            position < prompt_of(number)
            for tokens in (*order, TOKENS)
            for position in differing(
                self.generate(number, tokens), alone[number][: prompt_of(number) + tokens - 1]
            )
        ]


def kill_workers(daemon: Daemon, done: threading.Event) -> int:
    kills = 0
    while kills < KILLS and not done.wait(BETWEEN_KILLS_S):
        for worker in daemon.status()["workers"]:
            if worker["state"] == "ready":
                os.kill(worker["pid"], signal.SIGKILL)
                kills += 1
    return kills


def crowd(sessions: Sessions, alone: list[Positions], name: str) -> Entry:
    """All of them at once."""
    begun, ended, together, pauses = time.monotonic(), threading.Event(), 0, 0
    with ThreadPoolExecutor(SESSIONS + 1) as pool:
        killing = pool.submit(kill_workers, sessions.daemon, ended)
        work = [pool.submit(sessions.come_and_go, i, alone) for i in range(SESSIONS)]
        while not all(one.done() for one in work):
            counts = [one["runs_together"] for one in sessions.daemon.status()["workers"]]
            together = max([together, *counts])  # each worker counts from 0
            pauses += any(one["paused"] for one in decisions(sessions.daemon))
            time.sleep(0.1)  # style: between two looks
        ended.set()
    others = [is_prompts for one in work for is_prompts in one.result()]
    return entry(
        name,
        time.monotonic() - begun,
        differing=len(others),
        differing_prompts=sum(others),
        kills=killing.result(),
        seen_paused=pauses,
        together=together,
    )


def contract(name: str, dtype: str) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory:
        model(dtype).save_pretrained(directory)
        with ExitStack() as stack:
            sessions = Sessions(stack, directory, ALONE)
            alone = [sessions.generate(number, TOKENS) for number in range(SESSIONS)]
        for threads in CROWDS:
            with ExitStack() as stack:
                yield crowd(Sessions(stack, directory, threads), alone, f"{name}_{threads}")


if __name__ == "__main__":
    arms = {"contract/threads": "float32", "contract/bfloat16_threads": "bfloat16"}
    report({name: partial(contract, name, dtype) for name, dtype in arms.items()})
