# SPDX-License-Identifier: Apache-2.0
"""The row contract of fast numerics: sessions have the same bytes (tokens, keys and values of every
layer) alone and among others that come and go, with 1, 2 and 3 threads, while prompts are paused
and the worker is killed; a Llama in float32, the same in bfloat16, and that with weights in int8.
In a shorter text, with 3 threads: GPT-2, whose weights have their inputs first, a Mixtral, whose
experts each token chooses, a Llama of whose sessions each has several rows, padded on their left,
and one at the level avx512.

Each session is a process of its own. Of those that come and go some leave when they have what they
wanted, and some are killed in its midst; they go on coming until all eight have made the long text.
`differing` counts the positions at which a session had others, `differing_prompts` those of
them that prompts have. What could have made a difference is counted, too: `kills` (of workers),
`seen_paused` and `together`, and of the long generation beside which the fewest came and went,
`left_beside` and `killed_beside`."""

import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from positions import positions_of  # noqa: E402
from private_daemon import Daemon, running, wait_until  # noqa: E402
from report import Entry, entry, report  # noqa: E402
from schedule import decisions  # noqa: E402

SESSIONS, PROMPT = 8, 300
KILLS, BETWEEN_KILLS_S = 5, 2.0  # of workers
PATIENCE_S = 600.0  # where others have the cores
ALONE, CROWDS = 2, (1, 2, 3)  # threads
ARCHITECTURES = ("llama", "gpt2", "mixtral")
PRELOADED = ["djinn.torch", *(f"transformers.models.{n}.modeling_{n}" for n in ARCHITECTURES)]

Positions = list[bytes]  # a digest of each


@dataclass(frozen=True)
class Lengths:
    """In tokens."""

    whole: int  # of the long generation
    left: tuple[int, ...]  # of those who leave
    killed: tuple[int, ...]  # after which a client is killed


LONG = Lengths(1000, (3, 40, 150), (20, 200, 500))
BRIEF = Lengths(250, (3, 40), (20, 100))


@dataclass(frozen=True)
class Form:
    architecture: str
    dtype: str
    weights: str | None = None  # int8, or as the model has them
    rows: int = 1  # of each session; of several, each has another length
    options: tuple[str, ...] = ()  # djinnd's
    lengths: Lengths = BRIEF
    crowds: tuple[int, ...] = CROWDS[-1:]  # threads


WHOLE = partial(Form, "llama", lengths=LONG, crowds=CROWDS)
AVX512 = ("--isa", "avx512")
FORMS = {
    "contract/llama_float32_threads": WHOLE("float32"),
    "contract/llama_bfloat16_threads": WHOLE("bfloat16"),
    "contract/llama_int8_threads": WHOLE("bfloat16", "int8"),
    "contract/llama_bfloat16_avx512_threads": Form("llama", "bfloat16", options=AVX512),
    "contract/llama_bfloat16_padded_threads": Form("llama", "bfloat16", rows=3),
    "contract/gpt2_float32_threads": Form("gpt2", "float32"),
    "contract/gpt2_bfloat16_threads": Form("gpt2", "bfloat16"),
    "contract/gpt2_int8_threads": Form("gpt2", "bfloat16", "int8"),
    "contract/mixtral_bfloat16_threads": Form("mixtral", "bfloat16"),
}


def model(form: Form) -> Any:
    import torch
    import transformers

    torch.manual_seed(1)
    made = {"llama": llama, "gpt2": gpt2, "mixtral": mixtral}[form.architecture](transformers)
    return made.to(getattr(torch, form.dtype))


def llama(transformers: Any) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=4096,
        )
    )


def gpt2(transformers: Any) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=512, n_layer=6, n_head=8, vocab_size=4096)
    )


def mixtral(transformers: Any) -> Any:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            num_local_experts=8,
            num_experts_per_tok=2,
            vocab_size=4096,
        )
    )


def prompt_of(seed: int) -> int:
    """Tokens, of each seed another number."""
    return PROMPT + seed


def prompts_of(seed: int, rows: int) -> dict[str, Any]:
    """The first has all the tokens, and each one after it fewer, behind its padding."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 4000, (rows, prompt_of(seed)), generator=draw)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : 70 * row + seed] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def client(commands: Connection, host: str, directory: str, form: Form, seed: int) -> None:
    """Answers each number of tokens with what it has at each position."""
    os.environ["DJINN_HOST"] = host
    import djinn
    import torch
    import transformers

    torch.set_num_threads(1)
    djinn.enable()
    djinn.config.numerics = "fast"
    djinn.config.weights = form.weights
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    inputs = {name: one.to(ghost.device) for name, one in prompts_of(seed, form.rows).items()}
    while (tokens := commands.recv()) is not None:
        cache = transformers.DynamicCache()
        torch.manual_seed(seed)
        said = ghost.generate(
            **inputs,
            past_key_values=cache,
            do_sample=True,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        ).cpu()
        how = djinn.explain(ghost)
        assert (how["tier"], how["weights"]) == (2, form.weights), how
        commands.send(positions_of(said, cache))


def differing(found: Positions, expected: Positions) -> list[int]:
    """Numbers of positions. As many are expected as are found."""
    pairs = enumerate(zip(found, expected, strict=True))
    return [number for number, (a, b) in pairs if a != b]


class Session:
    """A client that has come. It leaves with the block, unless it is killed in it."""

    def __init__(self, daemon: Daemon, directory: str, form: Form, seed: int) -> None:
        self.daemon = daemon
        self.whole = form.lengths.whole
        forks = multiprocessing.get_context("forkserver")
        self.pipe, there = forks.Pipe()
        arguments = (there, daemon.host, directory, form, seed)
        self.process = forks.Process(target=client, args=arguments, daemon=True)
        self.process.start()
        there.close()  # so that its end is heard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.pipe.send(None)
        self.process.join()

    def generate(self, tokens: int) -> Positions:
        self.pipe.send(tokens)
        return list(self.pipe.recv())

    def begin_and_be_killed(self, after: int) -> bool:
        """Behind so many tokens. Gives whether the generation still went on."""
        self.pipe.send(self.whole)
        wait_until(lambda: self.steps() > after, "it generates", PATIENCE_S)
        goes_on = not self.pipe.poll()
        self.process.kill()
        return goes_on

    def steps(self) -> int:
        assert self.process.is_alive(), "a client has failed"
        of_all = {one["pid"]: one["steps"] for one in self.daemon.observer.sessions()}
        return int(of_all.get(self.process.pid, 0))


@dataclass
class Crowd:
    """All of them at once. Threads: each seat's own, but for what is appended to."""

    daemon: Daemon
    directory: str
    form: Form
    alone: list[Positions]
    begun: float = field(default_factory=time.monotonic)
    still_visiting: set[int] = field(default_factory=lambda: set(range(SESSIONS)))  # seats
    long: list[tuple[float, float]] = field(default_factory=list)  # from when till when
    left: list[float] = field(default_factory=list)  # when
    killed: list[float] = field(default_factory=list)  # when
    others: list[bool] = field(default_factory=list)  # of positions that differ: is it a prompt's?

    def take_seat(self, seat: int) -> None:
        """One session after the other comes, of the same prompt."""
        draw = random.Random(seat)
        lengths = self.form.lengths
        visits = [
            *(partial(self.come_and_leave, seat, tokens) for tokens in lengths.left),
            *(partial(self.come_and_be_killed, seat, tokens) for tokens in lengths.killed),
        ]
        visits.append(partial(self.stay, seat))
        draw.shuffle(visits)
        try:
            for visit in visits:
                visit()
        finally:
            self.still_visiting.discard(seat)  # or the others would come and go for ever
        for tokens in itertools.cycle(lengths.left):
            if not self.still_visiting:
                break
            self.come_and_leave(seat, tokens)
            self.come_and_be_killed(seat, tokens)

    def come(self, seat: int) -> Session:
        return Session(self.daemon, self.directory, self.form, seat)

    def compare(self, seat: int, session: Session, tokens: int) -> None:
        expected = self.alone[seat][: prompt_of(seat) + tokens - 1]
        found = differing(session.generate(tokens), expected)
        self.others += [position < prompt_of(seat) for position in found]

    def stay(self, seat: int) -> None:
        with self.come(seat) as session:
            begun = time.monotonic()
            self.compare(seat, session, self.form.lengths.whole)
            self.long.append((begun, time.monotonic()))

    def come_and_leave(self, seat: int, tokens: int) -> None:
        with self.come(seat) as session:
            self.compare(seat, session, tokens)
        self.left.append(time.monotonic())

    def come_and_be_killed(self, seat: int, tokens: int) -> None:
        with self.come(seat) as session:
            goes_on = session.begin_and_be_killed(tokens)
        if goes_on:
            self.killed.append(time.monotonic())

    def fewest_beside(self, times: list[float]) -> int:
        """Of these, in any of the long generations."""
        return min(sum(begun < at < ended for at in times) for begun, ended in self.long)

    def kill_workers(self, over: threading.Event) -> int:
        kills = 0
        while kills < KILLS and not over.wait(BETWEEN_KILLS_S):
            for worker in self.daemon.status()["workers"]:
                if worker["state"] == "ready":
                    os.kill(worker["pid"], signal.SIGKILL)
                    kills += 1
        return kills

    def gather(self, name: str) -> Entry:
        over, together, pauses = threading.Event(), 0, 0
        with ThreadPoolExecutor(SESSIONS + 1) as pool:
            killing = pool.submit(self.kill_workers, over)
            work = [pool.submit(self.take_seat, seat) for seat in range(SESSIONS)]
            while not all(one.done() for one in work):
                counts = [one["runs_together"] for one in self.daemon.status()["workers"]]
                together = max([together, *counts])  # each worker counts from 0
                pauses += any(one["paused"] for one in decisions(self.daemon))
                time.sleep(0.1)  # style: between two looks
            over.set()
        for one in work:
            one.result()
        return entry(
            name,
            time.monotonic() - self.begun,
            differing=len(self.others),
            differing_prompts=sum(self.others),
            kills=killing.result(),
            seen_paused=pauses,
            together=together,
            left_beside=self.fewest_beside(self.left),
            killed_beside=self.fewest_beside(self.killed),
        )


def alone(daemon: Daemon, directory: str, form: Form) -> Iterator[Positions]:
    for seat in range(SESSIONS):
        with Session(daemon, directory, form, seat) as session:
            yield session.generate(form.lengths.whole)


def contract(name: str, form: Form) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory:
        model(form).save_pretrained(directory)
        with running(*form.options, threads=ALONE) as daemon:
            expected = list(alone(daemon, directory, form))
        for threads in form.crowds:
            with running(*form.options, threads=threads) as daemon:
                yield Crowd(daemon, directory, form, expected).gather(f"{name}_{threads}")


if __name__ == "__main__":
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    report({name: partial(contract, name, form) for name, form in FORMS.items()})
