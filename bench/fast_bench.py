# SPDX-License-Identifier: Apache-2.0
"""The figures of fast numerics: what a token of a ghost takes, of what reading its weights takes,
and what a prompt and an encoder take, of eager.

Nothing that computes a token can take much less than the floor (floor.py): the reading of as many
bytes by as many threads, measured between the arms. `floor_huge` is how much of what it reads lies
in huge pages: where it is less than 1, the host had none.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from floor import Floor, least  # noqa: E402
from ghost_models import both, generate, gpt2, minilms, qwen, token_seconds  # noqa: E402
from private_daemon import THREADS, running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 5
CONTEXT = 128
TEACHER = 1000  # tokens
WARM = 5  # runs, until an encoder is captured and its plans are there


def bytes_of(model: Any) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def qwen_float32() -> Any:
    return qwen().float()


def gpt2_bfloat16() -> Any:
    return gpt2().bfloat16()


def decode(name: str, make: Callable[[], Any]) -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(3, 500, (1, CONTEXT))
    with both(make) as (local, ghost):
        floor = Floor(bytes_of(local))

        def measure(numerics: str) -> tuple[float, list[float]]:
            djinn.config.numerics = numerics
            return token_seconds(ghost, ids), floor.measure()

        for numerics in ("exact", "fast"):
            djinn.config.numerics = numerics
            generate(ghost, ids, 2)
            assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        for _ in range(REPETITIONS):
            exact, between = measure("exact")
            fast, behind = measure("fast")
            of_floor = fast / least(between, behind)
            yield entry(name, fast, of_floor=of_floor, of_exact=fast / exact, floor_huge=floor.huge)


def decode_int8(name: str) -> Iterator[Entry]:
    """Beside the same model in bfloat16, of the floor of its own bytes."""
    import djinn
    import torch
    from djinn.torch import ghosts

    ids = torch.randint(3, 500, (1, CONTEXT))
    djinn.config.weights, djinn.config.numerics = "int8", "fast"
    with both(qwen) as (_, ghost):
        held = ghosts.ghost_of(ghost)
        assert held is not None and held.is_int8, held
        floor = Floor(held.bytes)
        generate(ghost, ids, 2)
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        for _ in range(REPETITIONS):
            before = floor.measure()
            found = token_seconds(ghost, ids)
            of_floor = found / least(before, floor.measure())
            yield entry(name, found, of_floor=of_floor, floor_huge=floor.huge)


def byte_model(dtype: Any) -> Any:
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(ROOT / "models" / "bytes", dtype=dtype).eval().requires_grad_(False)


def drawn_by(model: Any) -> Any:
    import torch

    torch.manual_seed(1)
    return model.generate(
        torch.tensor([[256]]),
        do_sample=True,
        max_new_tokens=TEACHER,
        min_new_tokens=TEACHER,
        pad_token_id=0,
    )


def by_steps(model: Any, ids: Any) -> Any:
    """The logits from which each token behind the first was taken, as a generation computes them,
    which is forced to say these tokens: [tokens - 1, vocabulary], float32, on the CPU."""
    import torch
    import transformers

    scores: list[Any] = []

    class Teacher(transformers.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, said: Any, found: Any) -> Any:
            scores.append(found.float().cpu())
            forced = torch.full_like(found, -torch.inf)
            forced[:, ids[0, said.shape[1]]] = 0
            return forced

    # No token ends it, nor is any one forbidden lest it does.
    teacher = Teacher()
    generate(model, ids[:, :1], TEACHER, logits_processor=[teacher], eos_token_id=None)
    return torch.cat(scores)


def agreement(name: str) -> Iterator[Entry]:
    """Of tokens that float32 has drawn, at how many the likeliest next one is eager's, at once and
    token by token with a cache."""
    import djinn
    import torch

    ids = drawn_by(byte_model(torch.float32))
    djinn.config.numerics = "fast"

    def likeliest(model: Any) -> tuple[Any, Any]:
        there = ids.to(model.device)
        with torch.no_grad():
            at_once = model(there, use_cache=False).logits.argmax(-1).cpu()[0, :-1]
        return at_once, by_steps(model, ids).argmax(-1)

    same: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        local = byte_model(dtype)
        djinn.enable()
        ghost = byte_model(dtype)
        eager, found = likeliest(local), likeliest(ghost)
        told = djinn.explain(ghost)
        assert "fast" in told["numerics"], told
        djinn.disable()
        for way, a, b in zip(("at_once", "by_steps"), eager, found, strict=True):
            same[f"{way}_{str(dtype).removeprefix('torch.')}"] = float((a == b).float().mean())
    yield entry(name, 0, agreement=min(same.values()), **same)


def divergence_int8(name: str) -> Iterator[Entry]:
    """How far from float32 the byte model in bfloat16 is with weights in int8, and with its own:
    the mean of KL over tokens that float32 has drawn, computed step by step as decoding does."""
    import djinn
    import torch

    local = byte_model(torch.float32)
    ids = drawn_by(local)
    expected = by_steps(local, ids).log_softmax(-1)
    djinn.enable()
    djinn.config.numerics = "fast"

    def divergence(form: Any) -> float:
        djinn.config.weights = form
        ghost = byte_model(torch.bfloat16)
        found = by_steps(ghost, ids).log_softmax(-1)
        told = djinn.explain(ghost)
        assert told["weights"] == form and "fast" in told["numerics"], told
        return float(
            torch.nn.functional.kl_div(found, expected, reduction="batchmean", log_target=True)
        )

    int8, bfloat16 = divergence("int8"), divergence(None)
    yield entry(name, 0, int8=int8, bfloat16=bfloat16, of_bfloat16=int8 / bfloat16)
    djinn.disable()


def against_eager(
    name: str, eager: Callable[[], Any], found: Callable[[], Any], ghost: Any
) -> Iterator[Entry]:
    """Arms alternate: eager, and the ghost, exact and fast."""
    import djinn

    def measure(numerics: str) -> float:
        djinn.config.numerics = numerics
        return seconds_of(found)

    for numerics in ("exact", "fast"):
        djinn.config.numerics = numerics
        for _ in range(WARM):
            eager(), found()
    told = djinn.explain(ghost)
    assert told["tier"] in (1, 2) and "fast" in told["numerics"], told
    for _ in range(REPETITIONS * 4):
        here, exact, fast = seconds_of(eager), measure("exact"), measure("fast")
        yield entry(name, fast, of_eager=fast / here, of_exact=fast / exact)
    djinn.config.numerics = "exact"


def prefill(name: str, make: Callable[[], Any]) -> Iterator[Entry]:
    import torch

    ids = torch.randint(3, 500, (1, CONTEXT))
    with both(make) as (local, ghost):
        yield from against_eager(
            name, lambda: generate(local, ids, 1), lambda: generate(ghost, ids, 1), ghost
        )


def minilm(name: str, tokens: int) -> Iterator[Entry]:
    import torch

    ids = torch.randint(1000, 2000, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with minilms() as (local, ghost), torch.no_grad():
        there = {name: one.to(ghost.device) for name, one in inputs.items()}
        yield from against_eager(
            name,
            lambda: local(**inputs),
            lambda: ghost(**there).last_hidden_state.cpu(),
            ghost,
        )


# What gives a benchmark's entries when it is told the name.
BENCHMARKS: dict[str, Callable[[str], Iterator[Entry]]] = {
    "fast/qwen_bfloat16": partial(decode, make=qwen),
    "fast/qwen_float32": partial(decode, make=qwen_float32),
    "fast/qwen_int8": decode_int8,
    "fast/bytes": agreement,
    "fast/bytes_int8": divergence_int8,
    "fast/gpt2_float32": partial(decode, make=gpt2),
    "fast/gpt2_bfloat16": partial(decode, make=gpt2_bfloat16),
    "fast/qwen_bfloat16_avx2": partial(decode, make=qwen),
    "fast/prefill_gpt2_float32": partial(prefill, make=gpt2),
    "fast/prefill_qwen_float32": partial(prefill, make=qwen_float32),
    "fast/prefill_qwen_bfloat16": partial(prefill, make=qwen),
    "fast/minilm_16": partial(minilm, tokens=16),
    "fast/minilm_128": partial(minilm, tokens=128),
}


def with_a_daemon(name: str) -> list[Entry]:
    import torch

    torch.set_num_threads(THREADS)
    options = ("--isa", "avx2") if name.endswith("_avx2") else ()
    with running(*options) as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        return list(BENCHMARKS[name](name))


def in_a_process(name: str) -> list[Entry]:
    """A process has one djinnd for its ghosts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(with_a_daemon, name).result()


def main() -> None:
    report({name: partial(in_a_process, name) for name in BENCHMARKS})


if __name__ == "__main__":
    main()
