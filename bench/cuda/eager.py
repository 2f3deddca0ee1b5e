#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast PyTorch and transformers decode at batch 1 in bf16, as what djinnd is compared with.

Models with the configurations below and random weights, made on the device. A prompt of 128 tokens,
then 64 tokens, each the argmax of the logits before; ms a token on the host's clock, from the call
to the end of the device's work, median. Three ways:
  dynamic cache    as transformers does by default; each kv length is a new shape
  static cache     of 256 tokens; eager, too
  static cache, compiled    torch.compile(mode="reduce-overhead"): CUDA graphs; the time until it
                   was compiled is a fact, too
"again" is a second run over the same lengths, when what PyTorch keeps for each shape is there.
GB/s = bytes of weights that a token reads / time: all but embeddings that are only looked up. "of
the copy": per cent of a device copy of 1 GiB in the same process, bytes read and written.

Each model has a process of its own, which is ended when its share of the time is over.

    eager.py [--seconds S]
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stage import Stage, first_line, run, say

DEVICE = "cuda"
PROMPT, TOKENS, CAPACITY = 128, 64, 256
COPY_BYTES = 1 << 30
ONE_MODEL = "--model"
SHARES = {"Qwen2.5-0.5B": 0.45, "Llama-3.1-8B": 0.8, "GPT-2-XL": 1.0}  # of what is left
LOOKED_UP = ("embed_tokens.weight", "wte.weight")  # unless the logits are made with them, too


def config_of(model: str) -> Any:
    from transformers import GPT2Config, LlamaConfig, Qwen2Config

    if model == "Qwen2.5-0.5B":
        return Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151936,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
        )
    if model == "GPT-2-XL":
        return GPT2Config(n_embd=1600, n_layer=48, n_head=25, n_positions=1024, vocab_size=50257)
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
    )


def bytes_a_token(model: Any) -> int:
    tied = model.config.tie_word_embeddings
    read = 0
    for name, weight in model.named_parameters():  # names shared weights once
        is_looked_up = name.endswith(LOOKED_UP) and not tied
        if not is_looked_up and not name.endswith("wpe.weight"):
            read += weight.numel() * weight.element_size()
    return read


def copy_gb_per_second() -> float:
    import torch

    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * COPY_BYTES / statistics.median(times) / 1e9


class Decoding:
    def __init__(self, stage: Stage, name: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.stage, self.name = stage, name
        self.copy = copy_gb_per_second()
        stage.fact(f"{name}: device copy of 1 GiB", self.copy, "GB/s", "bytes read and written")
        torch.manual_seed(1)
        with torch.device(DEVICE):
            model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
        self.model = model.eval()
        self.bytes = bytes_a_token(model)
        stage.fact(f"{name}: weights that a token reads", self.bytes / 1e9, "GB")
        self.prompt = torch.randint(0, 50000, (1, PROMPT), device=DEVICE)

    def tokens(self, cache: Any, step: Callable[..., Any]) -> list[float]:
        """Seconds of each token after the prompt, which is computed eagerly."""
        import torch

        logits = self.model(self.prompt, past_key_values=cache, use_cache=True).logits
        token = logits[:, -1:].argmax(-1)
        seconds = []
        for _ in range(TOKENS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            torch.compiler.cudagraph_mark_step_begin()
            logits = step(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1:].argmax(-1).clone()
            token.item()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def report(self, how: str, seconds: list[float], detail: str = "") -> None:
        median = statistics.median(seconds)
        name = f"{self.name}, {how}"
        speed = self.bytes / median / 1e9
        self.stage.fact(f"{name}: a token", median * 1e3, "ms", detail)
        self.stage.fact(f"{name}: weights read", speed, "GB/s")
        self.stage.fact(f"{name}: weights read, of the copy", speed / self.copy * 100, "%")

    def static_cache(self) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.model.config, max_cache_len=CAPACITY)

    def measure_dynamic(self) -> None:
        from transformers import DynamicCache

        worst = "the slowest took {:.3g} ms"
        for how in ("dynamic cache", "dynamic cache, again"):
            seconds = self.tokens(DynamicCache(config=self.model.config), self.model)
            self.report(how, seconds, worst.format(max(seconds[1:]) * 1e3))

    def measure_static(self) -> None:
        cache = self.static_cache()
        self.tokens(cache, self.model)
        cache.reset()
        self.report("static cache", self.tokens(cache, self.model))

    def measure_compiled(self) -> None:
        import torch

        step = torch.compile(self.model.forward, mode="reduce-overhead")
        cache = self.static_cache()
        begin = time.perf_counter()
        warming = self.tokens(cache, step)
        took = time.perf_counter() - begin - statistics.median(warming) * TOKENS
        how = "static cache, compiled"
        self.stage.fact(f"{self.name}, {how}: compilation and warm-up", took, "s")
        cache.reset()
        self.report(how, self.tokens(cache, step))


def measure_model(name: str, stage: Stage) -> None:
    import torch

    decodings: list[Decoding] = []
    stage.part(f"{name}", lambda: decodings.append(Decoding(stage, name)))
    for decoding in decodings:
        with torch.inference_mode():
            stage.part(f"{name}, dynamic cache", decoding.measure_dynamic)
            stage.part(f"{name}, static cache", decoding.measure_static)
        with torch.no_grad():  # what is compiled in inference mode is not always replayed
            stage.part(f"{name}, compiled", decoding.measure_compiled)


def measure(stage: Stage) -> None:
    try:
        import transformers
    except ImportError as error:
        stage.fact("transformers", "not measured", detail=first_line(error))
        return
    stage.fact("transformers", transformers.__version__)
    for name, share in SHARES.items():
        stage.part(name, partial(run_model, stage, name, max(stage.left() * share, 5)))


def run_model(stage: Stage, name: str, seconds: float) -> None:
    """Its facts go to our stdout as they are."""
    command = [sys.executable, str(Path(__file__).resolve()), ONE_MODEL, name, str(seconds)]
    try:
        status = subprocess.run(command, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        say(f"{name}: ended after its share of {seconds:.0f} s")
        stage.fact(f"{name}: all was measured", False, detail=f"its share was {seconds:.0f} s")
        return
    if status:
        raise RuntimeError(f"its process ended with {status}")


def run_child(name: str, seconds: float) -> int:
    stage = Stage(seconds)
    measure_model(name, stage)
    return 1 if stage.failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_MODEL]:
        sys.exit(run_child(sys.argv[2], float(sys.argv[3])))
    run(measure, 150, __doc__.splitlines()[0])
