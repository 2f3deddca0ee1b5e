# SPDX-License-Identifier: Apache-2.0
"""Runs transformers' models as users do, on the fake runtime: a script for fake_process.run().

Each step is a section `MODEL/DTYPE/LAYERS layers/STEP` of the log: load, prefill, decode 1 ... for
a model that generates, load, run 1 ... for an encoder. A step ends when its result is on the
host."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from fake_process import mark

PROMPT = 7
STEPS = 4
LAYERS = (2, 3)
DTYPES = (torch.float32, torch.bfloat16)
HIDDEN, VOCABULARY = 64, 128


def gpt2(layers: int) -> Any:
    config = transformers.GPT2Config(
        n_embd=HIDDEN, n_layer=layers, n_head=4, n_positions=64, vocab_size=VOCABULARY
    )
    return transformers.GPT2LMHeadModel(config)


def shape(layers: int) -> dict[str, int]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    }


def llama(layers: int) -> Any:
    config = transformers.LlamaConfig(num_key_value_heads=2, **shape(layers))
    return transformers.LlamaForCausalLM(config)


def qwen2(layers: int) -> Any:
    config = transformers.Qwen2Config(num_key_value_heads=2, **shape(layers))
    return transformers.Qwen2ForCausalLM(config)


def bert(layers: int) -> Any:
    return transformers.BertModel(transformers.BertConfig(**shape(layers)))


def minilm(layers: int) -> Any:
    """A BERT as sentence-transformers run it: with a mask, and its outputs' mean."""
    return transformers.BertModel(transformers.BertConfig(**shape(layers)), add_pooling_layer=False)


GENERATORS: dict[str, Callable[[int], Any]] = {"gpt2": gpt2, "llama": llama, "qwen2": qwen2}
ENCODERS: dict[str, Callable[[int], Any]] = {"bert": bert, "minilm": minilm}


def generate(model: Any, prefix: str) -> None:
    tokens, cache = torch.ones(1, PROMPT, dtype=torch.long, device="cuda"), None
    for step in ["prefill", *(f"decode {number}" for number in range(1, STEPS + 1))]:
        mark(f"{prefix}/{step}")
        out = model(tokens, past_key_values=cache, use_cache=True)
        cache, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
        tokens.item()


def encode(model: Any, prefix: str) -> None:
    tokens = torch.ones(2, PROMPT, dtype=torch.long, device="cuda")
    mask = torch.ones_like(tokens) if "minilm" in prefix else None
    for step in range(1, STEPS + 1):
        mark(f"{prefix}/run {step}")
        hidden = model(tokens, attention_mask=mask).last_hidden_state
        if mask is not None:
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            hidden = (hidden * weights).sum(1) / weights.sum(1)
        hidden.cpu()


def run(name: str, make: Callable[[int], Any], dtype: torch.dtype, layers: int) -> None:
    prefix = f"{name}/{str(dtype).removeprefix('torch.')}/{layers} layers"
    mark(f"{prefix}/load")
    model = make(layers).to(dtype).eval().cuda()
    step = generate if name in GENERATORS else encode
    step(model, prefix)
    mark("between models")


def main() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)  # it answers nothing without a device
    torch.manual_seed(1)
    with torch.inference_mode():
        for name, make in {**GENERATORS, **ENCODERS}.items():
            for dtype in DTYPES:
                for layers in LAYERS:
                    run(name, make, dtype, layers)


if __name__ == "__main__":
    main()
