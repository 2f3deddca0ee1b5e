# SPDX-License-Identifier: Apache-2.0
"""Models of the zoo as eager PyTorch computes them on the fake runtime: a script for
fake_process.run(). Sections of the log, as run-graph names them: NAME/run 1 and NAME/run 2 of a
whole forward pass, NAME.prefill/run 1 and NAME.decode/run 1 of one that generates."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import zoo
from fake_process import mark

RUNS = 2
PROMPT = 7  # as run-graph's
PAST = 5


def load(name: str, dtype: zoo.Dtype) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        zoo.make_checkpoint(name, Path(scratch))
        return zoo.load_local(Path(scratch), zoo.entry(name), dtype).cuda()


def forward(name: str) -> None:
    model = load(name, "float32")
    inputs = zoo.entry(name).forward_inputs(model.config, "one")
    there = {key: one.cuda() for key, one in inputs.items()}
    for run in range(1, RUNS + 1):
        mark(f"{name}/run {run}")
        model(**there)


def words(count: int) -> torch.Tensor:
    return torch.ones(1, count, dtype=torch.long, device="cuda")


def generate(name: str) -> None:
    model = load(name, "bfloat16")
    for run in range(1, RUNS + 1):
        prompt, past, word = words(PROMPT), words(PAST), words(1)
        mark(f"{name}.prefill/run {run}")
        model(prompt, use_cache=True, logits_to_keep=1)  # as generate() does
        mark("before the decode step")
        cache = model(past, use_cache=True).past_key_values
        mark(f"{name}.decode/run {run}")
        model(word, past_key_values=cache, use_cache=True)


def main(names: list[str]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)  # it answers nothing without a device
    with torch.inference_mode():
        for name in names:
            (generate if zoo.entry(name).generates else forward)(name)
            mark("between models")


if __name__ == "__main__":
    main(sys.argv[1:])
