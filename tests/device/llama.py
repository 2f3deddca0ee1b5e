# SPDX-License-Identifier: Apache-2.0
"""A Llama so small that its tests are fast, and with weights so large that its tokens differ."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 96


def save(directory: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        initializer_range=0.3,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def local(checkpoint: Path) -> Any:
    """The model in this process, the reference."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, djinn=False)
    for one in model.parameters():  # safetensors may map them to any address
        one.data = one.data.clone()
    return model.eval().requires_grad_(False)
