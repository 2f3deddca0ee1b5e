# SPDX-License-Identifier: Apache-2.0
"""What fast numerics give each position of a row: its token, keys and values, as digests.

    rows.py REPORT MODELS THREADS [OPTION...]

A djinnd of its own, with so many threads and these options, opens ghosts of small models, which
generate behind prompts: a row alone, and the same row first among others of one call. Writes
{"MODEL, PROMPT tokens, alone": [digest of a position, ...], ...}. The checkpoints are made in
MODELS if they are not there.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import torch
import transformers
from positions import positions_of
from private_daemon import running
from transformers import PreTrainedConfig

NEW_TOKENS = 24
PROMPTS = 16, 100  # tokens: in one call with others they are more rows than a token step has
SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 1024,
}

# Weights that lie the other way; side by side; experts; and attention that is left to PyTorch.
CONFIGURATIONS: dict[str, PreTrainedConfig] = {
    "gpt2": transformers.GPT2Config(n_embd=768, n_layer=2, n_head=12, vocab_size=1024),
    "llama": transformers.LlamaConfig(**SIZES),
    "mixtral": transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **SIZES),
    "deepseek": transformers.DeepseekV3Config(
        first_k_dense_replace=2,
        kv_lora_rank=128,
        q_lora_rank=128,
        qk_rope_head_dim=32,
        qk_nope_head_dim=32,
        v_head_dim=64,
        **{**SIZES, "num_key_value_heads": 8},
    ),
}


def checkpoint(models: Path, name: str) -> Path:
    path = models / name
    if not (path / "config.json").exists():
        torch.manual_seed(1)
        transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[name]).save_pretrained(path)
    return path


def digests(ghost: transformers.PreTrainedModel, ids: torch.Tensor) -> list[str]:
    """Of each position of the first row behind its first token."""
    cache = transformers.DynamicCache()
    said = ghost.generate(
        ids.to(ghost.device),
        past_key_values=cache,
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    ).cpu()
    return [one.hex() for one in positions_of(said, cache, rows=1)]


def report(models: Path) -> dict[str, list[str]]:
    import djinn

    djinn.enable()
    djinn.config.numerics = "fast"
    found = {}
    for name in CONFIGURATIONS:
        path = checkpoint(models, name)
        ghost = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
        for tokens in PROMPTS:
            ids = torch.randint(3, 1000, (3, tokens), generator=torch.Generator().manual_seed(5))
            found[f"{name}, {tokens} tokens, alone"] = digests(ghost, ids[:1])
            found[f"{name}, {tokens} tokens, among others"] = digests(ghost, ids)
        assert "fast" in djinn.explain(ghost)["numerics"], djinn.explain(ghost)
    return found


def main() -> None:
    into, models, threads, *options = sys.argv[1:]
    with running(*options, threads=int(threads)) as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        Path(into).write_text(json.dumps(report(Path(models))))


if __name__ == "__main__":
    main()
