# SPDX-License-Identifier: Apache-2.0
"""A Llama so small that its tests are fast, and with weights so large that its tokens differ."""

from pathlib import Path
from typing import Any

import djinn
import torch
import transformers

VOCABULARY = 96

# Ways to generate 24 tokens: without an end token before them, and without any.
GREEDY = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
EVERY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
RETURNED = {"return_dict_in_generate": True}


def save(directory: Path, seed: int, **others: Any) -> Path:
    """others: what its configuration has in place of what follows."""
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "initializer_range": 0.3,
    }
    config = transformers.LlamaConfig(**(sizes | others))
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def local(checkpoint: Path) -> Any:
    """The model in this process, the reference."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, djinn=False)
    for one in model.parameters():  # safetensors may map them to any address
        one.data = one.data.clone()
    return model.eval().requires_grad_(False)


def prompt(rows: int, tokens: int, padded: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + tokens)
    ids = torch.randint(2, VOCABULARY, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows if padded else 0):
        ids[row, :row] = 0
        mask[row, :row] = 0
    return {"input_ids": ids, "attention_mask": mask}


def on_device(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.to(djinn.device(0)) for name, one in inputs.items()}


class Unknown(transformers.LogitsProcessor):
    """Changes nothing, and djinnd cannot know that."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores
