# SPDX-License-Identifier: Apache-2.0
"""PyTorch and transformers as they are, compiled, and as a ghost: the last word of the command.

Int8 is the form of a ghost's weights; the model is one in bfloat16."""

import os
import sys
from typing import Any

import torch
import transformers
from arm import Generate, serve

KIND = sys.argv.pop()


def options_of(model: Any) -> dict[str, Any]:
    """transformers compiles the forward of a static cache by itself, on devices but the CPU."""
    if KIND != "compiled":
        return {}
    model.forward = torch.compile(model.forward, dynamic=False, fullgraph=True)
    return {"cache_implementation": "static"}


def open_model(directory: str, dtype: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    if KIND in ("exact", "fast"):
        import djinn

        djinn.enable()
        djinn.config.numerics = KIND
        djinn.config.weights = "int8" if dtype == "int8" else None
    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = getattr(torch, "bfloat16" if dtype == "int8" else dtype)
    model = load(directory, dtype=plain).eval().requires_grad_(False)
    if KIND in ("eager", "compiled"):
        for one in model.parameters():  # a mapped file may lie anywhere
            one.data = one.data.clone()
    options = options_of(model)

    def generate(prompt: list[int], tokens: int) -> list[int]:
        ids = torch.tensor([prompt]).to(model.device)
        found = model.generate(
            ids,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        return [int(token) for token in found[0, len(prompt) :].cpu()]

    return generate


if __name__ == "__main__":
    # libgomp reads it when it is loaded, by the driver's hand; the driver sets it for all arms.
    assert "GOMP_SPINCOUNT" in os.environ
    serve(open_model)
