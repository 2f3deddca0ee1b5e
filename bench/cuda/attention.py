#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's attention costs in a decode step, and what it costs at a kv length that is new.

Which backend scaled_dot_product_attention (SDPA) chooses, as torch._fused_sdp_choice says. Then
one decode step (one query, batch 1, dimension 128, bf16) through each backend, ms on the host's
clock from the call until the device is done:
  new     the first call of this process at that kv length: 24 lengths, one after the other, as a
          decode makes them; the median and the worst; the backend has run before, at another length
  seen    the same lengths again: the median
  enqueue the call alone, without the wait, at lengths seen before: the median
Backends that choose among the same kernels get lengths of their own, so that each is new.

Then a whole decode step of a small Llama of transformers (8 layers, hidden 1024, random weights):
ms a token, each at a new kv length, and again at the same lengths; with PyTorch's switches as they
are, and with cuDNN's attention off; and how many kernels a step launches, as the profiler counts.

    attention.py [--seconds S]
"""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from stage import Stage, first_line, only, run

LENGTHS = 24
BASES = (512, 2048, 8192)
HEADS, KV_HEADS, DIM = 32, 8, 128
CAPACITY = 8192 + 1024
CELL_SECONDS = 4.0
BACKENDS = ("default", "cudnn", "flash", "efficient", "math")
CHOICES = {-1: "none", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
PROMPT, TOKENS = 128, 48


def chosen(backend: str) -> AbstractContextManager[None]:
    return nullcontext() if backend == "default" else only(backend)


def seconds_of(call: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def random(*shape: int, dtype: Any = None) -> Any:
    import torch

    return torch.randn(*shape, device="cuda", dtype=dtype or torch.bfloat16)


def report_choices(stage: Stage) -> None:
    import torch

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for step, queries, length in (("decode", 1, 517), ("prefill", 128, 128)):
            for grouped in (False, True):
                for masked in (False, True):
                    heads = KV_HEADS if grouped else HEADS
                    q = random(1, HEADS, queries, DIM, dtype=dtype)
                    k = random(1, heads, length, DIM, dtype=dtype)
                    mask = torch.ones(1, 1, queries, length, device="cuda", dtype=torch.bool)
                    causal = step == "prefill" and not masked
                    choice = torch._fused_sdp_choice(
                        q, k, k, mask if masked else None, 0.0, causal, enable_gqa=grouped
                    )
                    name = f"SDPA chooses: {str(dtype).removeprefix('torch.')}, {step}"
                    name += ", grouped heads" if grouped else ""
                    name += ", mask" if masked else ", causal" if causal else ""
                    stage.fact(name, CHOICES.get(int(choice), str(choice)))


class Cell:
    """One backend, grouped heads or not, contiguous K and V or views of a larger buffer."""

    def __init__(self, stage: Stage, backend: str, grouped: bool, narrowed: bool) -> None:
        self.stage, self.backend = stage, backend
        self.grouped, self.narrowed = grouped, narrowed
        self.q = random(1, HEADS, 1, DIM)
        heads = KV_HEADS if grouped else HEADS
        self.k, self.v = random(1, heads, CAPACITY, DIM), random(1, heads, CAPACITY, DIM)
        self.name = f"SDPA {backend}, {'32 q / 8 kv' if grouped else '32'} heads"
        self.name += ", K and V views of a larger buffer" if narrowed else ""

    def inputs(self, length: int) -> tuple[Any, Any]:
        k, v = (x.narrow(2, 0, length) for x in (self.k, self.v))
        return (k, v) if self.narrowed else (k.contiguous(), v.contiguous())

    def attend(self, k: Any, v: Any) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(
            self.q, k, v, enable_gqa=self.grouped
        )

    def measure(self) -> None:
        turn = BACKENDS.index(self.backend) * 2 + (1 if self.narrowed else 0)
        with chosen(self.backend):
            try:
                k, v = self.inputs(64 + turn)
                first = seconds_of(lambda: self.attend(k, v))
            except RuntimeError as error:
                self.stage.fact(self.name, "does not apply", detail=first_line(error))
                return
            if not self.narrowed:
                self.stage.fact(f"{self.name}, first call of all", first * 1e3, "ms")
            for base in BASES:
                self.measure_near(base, base + 5 + LENGTHS * turn)

    def measure_near(self, base: int, first: int) -> None:
        until = time.monotonic() + CELL_SECONDS
        new: list[float] = []
        lengths: list[int] = []
        for length in range(first, first + LENGTHS):
            k, v = self.inputs(length)
            new.append(seconds_of(lambda k=k, v=v: self.attend(k, v)))
            lengths.append(length)
            if time.monotonic() > until:
                break
        seen, enqueue = [], []
        for length in lengths * 2:
            k, v = self.inputs(length)
            seen.append(seconds_of(lambda k=k, v=v: self.attend(k, v)))
            begin = time.perf_counter()
            self.attend(k, v)
            enqueue.append(time.perf_counter() - begin)
        name, ran = f"{self.name}, kv about {base}", f"{len(lengths)} lengths from {first} on"
        fact = self.stage.fact
        fact(f"{name}, new length, median", statistics.median(new) * 1e3, "ms", ran)
        fact(f"{name}, new length, worst", max(new) * 1e3, "ms", ran)
        fact(f"{name}, seen length, median", statistics.median(seen) * 1e3, "ms", ran)
        fact(f"{name}, seen length, enqueue", statistics.median(enqueue) * 1e3, "ms", ran)


class SmallLlama:
    def __init__(self, stage: Stage) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=32000,
        )
        torch.manual_seed(1)
        self.stage = stage
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        self.prompt = torch.randint(0, 32000, (1, PROMPT), device="cuda")

    def prefill(self, extra: int) -> Any:
        """The cache after a prompt that is `extra` tokens longer."""
        import torch

        longer = torch.cat([self.prompt, self.prompt.repeat(1, 4)[:, :extra]], dim=1)
        return self.model(longer, use_cache=True).past_key_values

    def step(self, cache: Any) -> Any:
        return self.model(self.prompt[:, :1], past_key_values=cache, use_cache=True).logits

    def ms_a_token(self, extra: int) -> list[float]:
        cache = self.prefill(extra)
        return [seconds_of(lambda: self.step(cache)) * 1e3 for _ in range(TOKENS)]

    def measure(self, switches: str, extra: int) -> None:
        import torch

        name = f"Llama of 8 layers, eager, a decode step, {switches}"
        with torch.inference_mode():
            self.ms_a_token(extra + 2 * TOKENS)  # warms up, at other lengths
            new, seen = self.ms_a_token(extra), self.ms_a_token(extra)
            self.stage.fact(f"{name}, new lengths", statistics.median(new), "ms", "median")
            self.stage.fact(f"{name}, new lengths, worst", max(new), "ms")
            self.stage.fact(f"{name}, seen lengths", statistics.median(seen), "ms", "median")

    def count_kernels(self, switches: str) -> None:
        import torch
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with torch.inference_mode():
            cache = self.prefill(0)
            self.step(cache)
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                self.step(cache)
                torch.cuda.synchronize()
        on_device = [e.name for e in profiler.events() if e.device_type == DeviceType.CUDA]
        copies = [name for name in on_device if name.startswith(("Memcpy", "Memset"))]
        kernels = len(on_device) - len(copies)
        name = f"kernels of a decode step of a Llama of 8 layers, {switches}"
        if not kernels:
            raise RuntimeError("the profiler saw no kernel")
        detail = f"besides {len(copies)} copies and memsets"
        self.stage.fact(name, kernels, "kernels", detail)
        attention = sorted({n[:80] for n in on_device if is_of_attention(n)})
        self.stage.fact(f"{name}, those of attention", "; ".join(attention) or "none by name")


def is_of_attention(kernel: str) -> bool:
    return any(word in kernel.lower() for word in ("flash", "fmha", "sdpa", "attention", "softmax"))


def measure_llama(stage: Stage) -> None:
    import torch

    try:
        llama = SmallLlama(stage)
    except ImportError as error:
        stage.fact("Llama of 8 layers", "not measured", detail=first_line(error))
        return
    as_they_are, off = "default switches", "cuDNN attention off"
    stage.part("Llama", lambda: llama.measure(as_they_are, 0))
    stage.part("its kernels", lambda: llama.count_kernels(as_they_are))
    torch.backends.cuda.enable_cudnn_sdp(False)
    stage.part("Llama without cuDNN", lambda: llama.measure(off, 3))
    stage.part("its kernels without cuDNN", lambda: llama.count_kernels(off))
    torch.backends.cuda.enable_cudnn_sdp(True)


def measure(stage: Stage) -> None:
    stage.part("choices", lambda: report_choices(stage))
    cells = [
        (backend, grouped, narrowed)
        for narrowed in (False, True)
        for backend in BACKENDS
        for grouped in (True, False)
    ]
    for place, (backend, grouped, narrowed) in enumerate(cells):
        name = f"{backend}, grouped heads: {grouped}, views: {narrowed}"
        cell = partial(Cell, stage, backend, grouped, narrowed)
        stage.part(name, lambda cell=cell: cell().measure())
        if place == 1:  # what PyTorch does by default matters most
            stage.part("the small Llama", lambda: measure_llama(stage))


if __name__ == "__main__":
    run(measure, 90, __doc__.splitlines()[0])
