# SPDX-License-Identifier: Apache-2.0
"""The figures of ghost models: ratios against transformers eager here, on as many threads.

The arms of a ratio alternate; each repetition is one entry of the report.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import (  # noqa: E402
    both,
    generate,
    gpt2,
    minilms,
    qwen,
    tiny_llama,
    token_seconds,
)
from private_daemon import THREADS, running  # noqa: E402
from report import LONG, SHORT, Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 5
ALONE_TOKENS = 160

# --- benchmarks -----------------------------------------------------------------------------------


def record() -> Iterator[Entry]:
    """One operator recorded, from Python's call to its return; the CPU runs nothing meanwhile."""
    import djinn
    import torch
    from djinn.torch import _device

    x = torch.ones(8, 8).to(djinn.device(0))
    calls = 1000
    with torch.no_grad():
        for _ in range(REPETITIONS + 1):
            x.add(x).cpu()
            before = _device.stats()

            def many() -> None:
                for _ in range(calls):
                    x.add(x)

            seconds = seconds_of(many) / calls
            spent = (_device.stats()["capture_ns"] - before["capture_ns"]) / calls
            _device.flush()
            yield entry("ghost/record", seconds, inside_us=spent / 1000)


def crossed_by(work: Callable[[], Any]) -> int:
    """Bytes to djinnd and back, as it counts them."""
    import djinn

    profiler = djinn.get_profiler()
    profiler.reset()
    work()
    return int(profiler.get_stats()["bytes_crossed"])


def generation(name: str, make: Callable[[], Any]) -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(3, 500, (1, 16))
    with both(make) as (local, ghost):
        generate(ghost, ids, SHORT)
        same = torch.equal(generate(local, ids, LONG), generate(ghost, ids, LONG))
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        for _ in range(REPETITIONS):
            here, there = token_seconds(local, ids), token_seconds(ghost, ids)
            yield entry(name, there, of_eager=there / here, same_tokens=float(same))
        crossed = [crossed_by(lambda n=tokens: generate(ghost, ids, n)) for tokens in (SHORT, LONG)]
        a_token = (crossed[1] - crossed[0]) / (LONG - SHORT)
        yield entry(name + "/bytes", 0.0, bytes_a_token=a_token)


def custom_processor() -> Iterator[Entry]:
    """What a token costs this process beyond what it costs eager outside of its model: as there the
    model, waiting for djinnd is left out; with_waiting_ms has it."""
    import djinn
    import torch
    import transformers

    class Nothing(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores

    ids = torch.randint(3, 500, (1, 16))
    with both(tiny_llama) as (local, ghost):
        options = {"logits_processor": transformers.LogitsProcessorList([Nothing()])}
        inside = [0.0]
        forward = local.forward

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = forward(*args, **kwargs)
            inside[0] += time.perf_counter() - start
            return result

        here, there = generate(local, ids, LONG, **options), generate(ghost, ids, LONG, **options)
        same = torch.equal(here, there)
        for _ in range(REPETITIONS):
            local.forward = timed
            inside[0] = 0.0
            total = seconds_of(lambda: generate(local, ids, LONG, **options))
            local.forward = forward
            outside = (total - inside[0]) / LONG
            profiler = djinn.get_profiler()
            profiler.reset()
            spent = seconds_of(lambda: generate(ghost, ids, LONG, **options)) / LONG
            waiting_ms = profiler.get_stats()["execution_ms"] / LONG
            over_ms = (spent - outside) * 1e3
            yield entry(
                "ghost/generate_processor",
                spent,
                over_ms=over_ms - waiting_ms,
                with_waiting_ms=over_ms,
                same_tokens=float(same),
            )


def minilm() -> Iterator[Entry]:
    import djinn
    import torch

    ids = torch.randint(1000, 2000, (1, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with minilms() as (local, ghost), torch.no_grad():
        there = {name: one.to(ghost.device) for name, one in inputs.items()}
        for _ in range(5):
            local(**inputs)
            ghost(**there).last_hidden_state.cpu()
        assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
        for _ in range(REPETITIONS * 4):
            here = seconds_of(lambda: local(**inputs))
            found = seconds_of(lambda: ghost(**there).last_hidden_state.cpu())
            yield entry("ghost/minilm", found, of_eager=found / here)


def pulled_row() -> Iterator[Entry]:
    import djinn
    import torch

    logits = torch.randn(1, 64, 32000).to(djinn.device(0)) + 1
    logits[0, 0].cpu()
    for _ in range(REPETITIONS * 4):
        yield entry("ghost/pulled_row", seconds_of(lambda: logits[0, -1].cpu()))


def staging(host: str) -> Iterator[Entry]:
    """A tensor of 196 MB put, and read back, of two memcpys into fresh memory: each makes one."""
    import djinn
    import numpy as np

    x = np.ones(49_000_000, np.float32)
    with djinn.connect(host) as session:
        session.put(x).numpy()
        for _ in range(REPETITIONS * 2):
            made: list[Any] = []
            memcpy = seconds_of(lambda: made.append(np.copy(x)))  # noqa: B023
            memcpy += seconds_of(lambda: made.append(np.copy(x)))  # noqa: B023
            put = seconds_of(lambda: made.append(session.put(x)))  # noqa: B023
            read = seconds_of(lambda: made.append(made[-1].numpy()))  # noqa: B023
            assert np.array_equal(made[-1], x)
            yield entry(
                "staging/put_and_read",
                put + read,
                of_memcpy=memcpy / (put + read),
                put_of_memcpy=memcpy / 2 / put,
                read_of_memcpy=memcpy / 2 / read,
            )


def connect(host: str) -> Iterator[Entry]:
    import djinn

    djinn.connect(host).close()
    sessions: list[Any] = []
    for _ in range(REPETITIONS):
        yield entry("ghost/connect", seconds_of(lambda: sessions.append(djinn.connect(host))))
        sessions[-1].close()


def resident_load() -> Iterator[Entry]:
    """A ghost of 32 layers, whose weights djinnd has: transformers builds the model, as it does for
    one that it loads here (of_local), and djinnd only opens."""
    import djinn
    import transformers
    from djinn.torch.ghosts import stats

    load = transformers.AutoModelForCausalLM.from_pretrained
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory:
        tiny_llama(layers=32).save_pretrained(directory)
        djinn.enable()
        kept = [load(directory), load(directory, djinn=False)]
        for _ in range(REPETITIONS * 4):
            here = seconds_of(lambda: load(directory, djinn=False))
            before = stats.resident
            there = seconds_of(lambda: kept.append(load(directory)))
            assert stats.resident == before + 1 and kept.pop().device.type != "cpu"
            yield entry("ghost/resident_load", there, of_local=there / here)
        djinn.disable()


CHILD = """
import sys, time, torch, transformers, djinn
torch.set_num_threads(int(sys.argv[2]))
djinn.enable()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
ids = torch.randint(3, 500, (1, 16)).to(model.device)
count = int(sys.argv[3])
options = dict(max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
model.generate(ids, **options)
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    model.generate(ids, **options)
    print(time.perf_counter() - start, flush=True)
"""


def two_processes() -> Iterator[Entry]:
    """Tokens a second of two processes at once, of those of one alone."""
    import torch

    torch.manual_seed(1)
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory:
        gpt2().save_pretrained(directory)
        command = [sys.executable, "-c", CHILD, directory, str(THREADS), str(ALONE_TOKENS // 4)]
        pipe = subprocess.PIPE
        children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for _ in range(REPETITIONS):
            alone = ask(children[:1])
            together = ask(children)
            yield entry("ghost/two_processes", together, of_alone=2 * alone / together)
        for child in children:
            child.stdin.close()
            child.wait()


def ask(children: list[Any]) -> float:
    """Seconds until all have generated."""
    start = time.perf_counter()
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.stdout.readline()
    return time.perf_counter() - start


def main() -> None:
    with running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        import torch

        torch.set_num_threads(THREADS)
        report(
            {
                "ghost/record": record,
                "ghost/connect": lambda: connect(daemon.host),
                "ghost/pulled_row": pulled_row,
                "staging/put_and_read": lambda: staging(daemon.host),
                "ghost/resident_load": resident_load,
                "ghost/minilm": minilm,
                "ghost/generate_tiny": lambda: generation("ghost/generate_tiny", tiny_llama),
                "ghost/generate_processor": custom_processor,
                "ghost/generate_gpt2": lambda: generation("ghost/generate_gpt2", gpt2),
                "ghost/generate_qwen": lambda: generation("ghost/generate_qwen", qwen),
                "ghost/two_processes": two_processes,
            }
        )


if __name__ == "__main__":
    main()
