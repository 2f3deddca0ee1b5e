#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which changes of where operands lie, of workspaces and of batches change the bits of results.

Each fact is a count, "n of m": in so many of m comparisons both results were the same bits. What
differed first stands in the detail. The comparisons:
  attention     K and V as views of a larger buffer, whose rest is NaN, against contiguous ones; a
                repetition; a row of a batch of 4 against the same row alone
  linear        weights, or inputs, at 256, 64 and 16 bytes instead of 512; a repetition; a graph's
                replay against eager; other workspaces of cuBLAS, each in a process of its own; a
                row alone against the same row among others
  layer_norm, RMS norm, softmax    a row alone against the same row among 4

    bits.py [--seconds S]
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stage import Stage, first_line, only, run

DEVICE = "cuda"
LENGTHS = (1, 5, 64, 127, 128, 129, 777, 2048)
CAPACITY = 2560
BACKENDS = ("cudnn", "flash", "efficient", "math")
GEOMETRIES = ((32, 8, 128), (14, 2, 64))  # heads of queries, of keys, their dimension
ROWS = (1, 2, 5, 8, 33, 512)
WEIGHTS = ((4096, 4096), (896, 896), (4864, 896), (14336, 4096))
ALIGNMENTS = (256, 64, 16)
REPETITIONS = 10
HASHES = "--hashes"
WORKSPACES = {  # what PyTorch reads: cuBLAS as ":KiB:count", cuBLASLt in KiB
    "another process": {},
    "a process with workspaces of 32 MiB": {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUBLASLT_WORKSPACE_SIZE": "32768",
    },
    "a process with workspaces of 4 MiB": {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:1",
        "CUBLASLT_WORKSPACE_SIZE": "4096",
    },
    "a process without workspaces": {
        "CUBLAS_WORKSPACE_CONFIG": ":0:0",
        "CUBLASLT_WORKSPACE_SIZE": "0",
    },
}


@dataclass
class Count:
    """Of comparisons; prints itself as a fact."""

    equal: int = 0
    all: int = 0
    different: list[str] = field(default_factory=list)

    def add(self, what: str, is_equal: bool) -> None:
        self.all += 1
        self.equal += is_equal
        if not is_equal:
            self.different.append(what)

    def report(self, stage: Stage, name: str) -> None:
        more = f" and {len(self.different) - 6} more" if len(self.different) > 6 else ""
        detail = "; ".join(self.different[:6]) + more
        stage.fact(f"{name}: equal", f"{self.equal} of {self.all}", detail=detail)


def same(a: Any, b: Any) -> bool:
    import torch

    bits_of_a, bits_of_b = (x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return a.shape == b.shape and bool(torch.equal(bits_of_a, bits_of_b))


def random(*shape: int, dtype: Any, seed: int = 1) -> Any:
    """The same numbers in each process."""
    import torch

    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)


def short(dtype: Any) -> str:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return names[str(dtype).removeprefix("torch.")]


@dataclass
class Attention:
    """One call, and what is to be known about its operands."""

    dtype: Any
    geometry: tuple[int, int, int]
    grouped: bool
    masked: bool
    prefill: bool
    length: int

    def __str__(self) -> str:
        words = [f"length {self.length}"]
        words += ["grouped heads"] if self.grouped else []
        words += ["mask"] if self.masked else []
        return ", ".join(words)

    def operands(self, batch: int = 1) -> tuple[Any, Any, Any]:
        heads, kv_heads, dim = self.geometry
        kv_heads = kv_heads if self.grouped else heads
        queries = self.length if self.prefill else 1
        q = random(batch, heads, queries, dim, dtype=self.dtype, seed=2)
        k = random(batch, kv_heads, self.length, dim, dtype=self.dtype, seed=3)
        v = random(batch, kv_heads, self.length, dim, dtype=self.dtype, seed=4)
        return q, k, v

    def mask(self) -> Any:
        """Causal in a prefill; each fifth key is hidden, but never the first."""
        import torch

        if not self.masked:
            return None
        queries = self.length if self.prefill else 1
        keys = torch.arange(self.length, device=DEVICE)
        mask = ((keys % 5 != 4)[None, :]).repeat(queries, 1)
        if self.prefill:
            mask &= keys[None, :] <= keys[:, None]
        return mask[None, None]

    def run(self, q: Any, k: Any, v: Any) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.mask(),
            is_causal=self.prefill and not self.masked,
            enable_gqa=self.grouped,
        )


def as_view(tensor: Any) -> Any:
    """The same values as a narrowed view of a buffer of the full capacity; its rest is NaN."""
    import torch

    batch, heads, length, dim = tensor.shape
    buffer = torch.full(
        (batch, heads, CAPACITY, dim), float("nan"), dtype=tensor.dtype, device=DEVICE
    )
    view = buffer.narrow(2, 0, length)
    view.copy_(tensor)
    return view


def attention_cases(
    dtype: Any, geometry: tuple[int, int, int], prefill: bool
) -> Iterator[Attention]:
    for length in LENGTHS:
        for grouped in (True, False):
            for masked in (False, True):
                yield Attention(dtype, geometry, grouped, masked, prefill, length)


def compare_attention(
    stage: Stage, backend: str, dtype: Any, geometry: tuple[int, int, int], prefill: bool
) -> None:
    views, again, refused = Count(), Count(), Count()
    with only(backend):
        for case in attention_cases(dtype, geometry, prefill):
            if stage.left() <= 0:
                break
            q, k, v = case.operands()
            try:
                plain = case.run(q, k, v)
            except RuntimeError as error:
                refused.add(f"{case}: {first_line(error)}", False)
                continue
            views.add(str(case), same(plain, case.run(q, as_view(k), as_view(v))))
            again.add(str(case), all(same(plain, case.run(q, k, v)) for _ in range(3)))
    heads, kv_heads, dim = geometry
    step = "prefill" if prefill else "decode"
    name = f"attention, {backend}, {short(dtype)}, {step}, {heads}/{kv_heads} heads of {dim}"
    if not views.all:
        why = refused.different[0] if refused.different else "no time"
        stage.fact(name, "does not apply", detail=why)
        return
    views.report(stage, f"{name}, K and V views or contiguous")
    if refused.all:
        stage.fact(f"{name}, cases refused", refused.all, detail=refused.different[0])
    again.report(stage, f"{name}, again")


def compare_attention_of_batch(stage: Stage, dtype: Any) -> None:
    import torch

    count = Count()
    for length in LENGTHS:
        case = Attention(dtype, GEOMETRIES[0], True, False, False, length)
        q, k, v = case.operands(batch=4)
        together = case.run(q, k, v)
        for row in range(4):
            alone = case.run(*(x[row : row + 1].clone() for x in (q, k, v)))
            count.add(f"{case}, row {row}", same(alone, together[row : row + 1]))
    torch.cuda.synchronize()
    count.report(stage, f"attention, default, {short(dtype)}, decode, a row alone or among 4")


@dataclass
class Linear:
    dtype: Any
    rows: int
    out: int
    into: int
    bias: bool

    def __str__(self) -> str:
        return f"{self.rows} rows, weight [{self.out}, {self.into}]"

    def operands(self) -> tuple[Any, Any, Any]:
        x = random(self.rows, self.into, dtype=self.dtype, seed=self.rows)
        weight = random(self.out, self.into, dtype=self.dtype, seed=5) / 32
        return x, weight, random(self.out, dtype=self.dtype, seed=6) if self.bias else None


def linear(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.linear(x, weight, bias)


def linear_cases(dtype: Any, bias: bool) -> Iterator[Linear]:
    for out, into in WEIGHTS:
        for rows in ROWS:
            yield Linear(dtype, rows, out, into, bias)


def at_alignment(tensor: Any, alignment: int) -> Any:
    """A copy whose address is a multiple of `alignment`, but not of twice as much."""
    import torch

    spare = 1024 // tensor.element_size()
    flat = torch.empty(tensor.numel() + 2 * spare, dtype=tensor.dtype, device=DEVICE)
    ahead = (-flat.data_ptr()) % 1024 + (alignment if alignment < 512 else 0)
    placed = flat.narrow(0, ahead // tensor.element_size(), tensor.numel()).view(tensor.shape)
    placed.copy_(tensor)
    return placed


def replayed(call: Callable[[], Any]) -> Any:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    result.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return result.clone()


def name_of(dtype: Any, bias: bool) -> str:
    return f"linear, {short(dtype)}, {'with' if bias else 'without'} bias"


def compare_linear(stage: Stage, dtype: Any, bias: bool) -> None:
    counts = {f"weights at {a} bytes instead of 512": Count() for a in ALIGNMENTS}
    counts |= {f"inputs at {a} bytes instead of 512": Count() for a in ALIGNMENTS}
    again = Count()
    for case in linear_cases(dtype, bias):
        x, weight, added = case.operands()
        x, weight = at_alignment(x, 512), at_alignment(weight, 512)
        plain = linear(x, weight, added)
        for alignment in ALIGNMENTS:
            moved = linear(x, at_alignment(weight, alignment), added)
            counts[f"weights at {alignment} bytes instead of 512"].add(
                str(case), same(plain, moved)
            )
            moved = linear(at_alignment(x, alignment), weight, added)
            counts[f"inputs at {alignment} bytes instead of 512"].add(str(case), same(plain, moved))
        repeated = all(same(plain, linear(x, weight, added)) for _ in range(REPETITIONS))
        again.add(str(case), repeated)
    for what, count in counts.items():
        count.report(stage, f"{name_of(dtype, bias)}, {what}")
    again.report(stage, f"{name_of(dtype, bias)}, {REPETITIONS} times again")


def compare_replays_of_linear(stage: Stage, dtype: Any, bias: bool) -> None:
    count = Count()
    for case in linear_cases(dtype, bias):
        operands = case.operands()
        plain = linear(*operands)
        count.add(str(case), same(plain, replayed(partial(linear, *operands))))
    count.report(stage, f"{name_of(dtype, bias)}, replayed by a graph or eager")


def compare_replays_of_attention(stage: Stage, dtype: Any) -> None:
    count = Count()
    for prefill in (False, True):
        for case in attention_cases(dtype, GEOMETRIES[0], prefill):
            if not case.masked:  # a mask is made in the call, which a capture does not like
                operands = case.operands()
                plain = case.run(*operands)
                count.add(str(case), same(plain, replayed(partial(case.run, *operands))))
    count.report(stage, f"attention, default, {short(dtype)}, replayed by a graph or eager")


def compare_rows_of_linear(stage: Stage, dtype: Any, bias: bool) -> None:
    for among in (2, 4, 8):
        count = Count()
        for out, into in WEIGHTS:
            x, weight, added = Linear(dtype, among, out, into, bias).operands()
            together = linear(x, weight, added)
            for row in range(among):
                alone = linear(x[row : row + 1].clone(), weight, added)
                count.add(f"[{out}, {into}], row {row}", same(alone, together[row : row + 1]))
        count.report(stage, f"{name_of(dtype, bias)}, a row alone or among {among}")


def row_operators(width: int, dtype: Any) -> dict[str, Callable[[Any], Any]]:
    import torch

    weight, bias = random(width, dtype=dtype, seed=8), random(width, dtype=dtype, seed=9)

    def rms_norm(x: Any) -> Any:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    return {
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (width,), weight, bias),
        "RMS norm of pow, mean, rsqrt": rms_norm,
        "torch.rms_norm": lambda x: torch.nn.functional.rms_norm(x, (width,), weight, 1e-6),
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax in fp32": lambda x: torch.softmax(x, -1, dtype=torch.float32),
        "argmax": lambda x: torch.argmax(x, -1),
    }


def compare_rows_of_operators(stage: Stage, dtype: Any) -> None:
    counts: dict[str, Count] = {}
    for width in (896, 1600, 4096, 128256):
        x = random(4, width, dtype=dtype, seed=7)
        for name, operator in row_operators(width, dtype).items():
            together = operator(x)
            for row in range(4):
                alone = operator(x[row : row + 1].clone())
                count = counts.setdefault(name, Count())
                count.add(f"width {width}, row {row}", same(alone, together[row : row + 1]))
    for name, count in counts.items():
        count.report(stage, f"{name}, {short(dtype)}, a row alone or among 4")


def hashes() -> dict[str, dict[str, str]]:
    """Of each case's result; a process of its own computes them."""
    import torch

    found: dict[str, dict[str, str]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        for bias in (False, True):
            of_kind = found.setdefault(name_of(dtype, bias), {})
            for case in linear_cases(dtype, bias):
                result = linear(*case.operands()).contiguous().cpu()
                bits = result.reshape(-1).view(torch.uint8).numpy().tobytes()
                of_kind[str(case)] = hashlib.sha256(bits).hexdigest()
    return found


def start_hashes(extra: dict[str, str]) -> subprocess.Popen[str]:
    unset = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
    environment = {k: v for k, v in os.environ.items() if k not in unset} | extra
    command = [sys.executable, str(Path(__file__).resolve()), HASHES]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def compare_workspaces(stage: Stage) -> None:
    """All processes at once: most of their time they start."""
    children = {name: start_hashes(extra) for name, extra in {"": {}, **WORKSPACES}.items()}
    try:
        texts = {
            name: child.communicate(timeout=max(stage.left(), 1))[0]
            for name, child in children.items()
        }
    finally:
        for child in children.values():
            child.kill()
    broken = {name: child.wait() for name, child in children.items() if child.wait() != 0}
    found = {n: json.loads(text.splitlines()[-1]) for n, text in texts.items() if n not in broken}
    plain = found.pop("", {})
    for name, others in found.items():
        for kind, cases in plain.items():
            count = Count()
            for case, value in cases.items():
                count.add(case, others[kind][case] == value)
            count.report(stage, f"{kind}, in {name}")
    if broken:
        raise RuntimeError(f"processes that computed hashes ended with {broken}")


def measure(stage: Stage) -> None:
    import torch

    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32

    def attention(backend: str, dtype: Any, geometry: tuple[int, int, int]) -> None:
        for prefill in (False, True):
            stage.part(
                f"attention {backend} {dtype}",
                partial(compare_attention, stage, backend, dtype, geometry, prefill),
            )

    for backend in ("cudnn", "flash"):
        attention(backend, bf16, GEOMETRIES[0])
    for dtype in (bf16, fp32):
        for bias in (False, True):
            stage.part("linear", partial(compare_linear, stage, dtype, bias))
            stage.part("rows of linear", partial(compare_rows_of_linear, stage, dtype, bias))
    stage.part("workspaces", partial(compare_workspaces, stage))
    for dtype in (bf16, fp32):
        for bias in (False, True):
            stage.part("replays", partial(compare_replays_of_linear, stage, dtype, bias))
        stage.part("replays of attention", partial(compare_replays_of_attention, stage, dtype))
    for dtype in (bf16, fp32):
        stage.part("rows of operators", partial(compare_rows_of_operators, stage, dtype))
        stage.part("rows of attention", partial(compare_attention_of_batch, stage, dtype))
    for geometry in GEOMETRIES:
        for dtype in (fp32, bf16, fp16):
            for backend in BACKENDS:
                if (geometry, dtype) != (GEOMETRIES[0], bf16) or backend in ("efficient", "math"):
                    attention(backend, dtype, geometry)


if __name__ == "__main__":
    if sys.argv[1:] == [HASHES]:
        print(json.dumps(hashes()))
    else:
        run(measure, 120, __doc__.splitlines()[0])
