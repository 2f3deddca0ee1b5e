# SPDX-License-Identifier: Apache-2.0
"""What djinnctl says that a program computes, against PyTorch's own counter on the same model here.

    flop counter   torch.utils.flop_counter: products, convolutions and attention; a multiplication
                   with its addition are two

Those of a program are at the upper bounds of its symbols, so the model here gets as many tokens.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import children
import compare
import pytest
import zoo
from private_daemon import BIN, Daemon

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 240.0
NEAR = 0.05
COUNTED = (
    "aten::linear",
    "aten::addmm",
    "aten::mm",
    "aten::bmm",
    "aten::matmul",
    "aten::_grouped_mm",
    "aten::convolution",
    "aten::scaled_dot_product_attention",
)
GENERATING = (
    *("llama", "gpt2", "phi", "cohere", "qwen3", "qwen3_moe", "mixtral", "opt"),
    *("codegen", "gemma2", "gpt_neox", "olmoe", "qwen2_moe", "granitemoe"),
    *("Glm4MoeForCausalLM", "Llama4ForCausalLM", "GptOssForCausalLM"),
)
FORWARD = (
    *("bert", "electra", "vit", "convnext", "resnet", "wav2vec2", "clip", "siglip"),
    *("deberta-v2", "hubert", "segformer", "swin"),
)


def counted(run: Any) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def here(name: str, directory: Path) -> Any:
    """Attention in products, and a product for each expert, which the counter knows everywhere."""
    import transformers

    auto = getattr(transformers, zoo.entry(name).auto)
    model = auto.from_pretrained(
        directory, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def measure_generating(name: str, directory: Path, report: dict[str, Any]) -> None:
    import torch

    model = here(name, directory)
    for program in report["programs"]:
        at = {one["symbol"]: one["value"] for one in program["at"]}
        past, tokens = at["past"], at["tokens"]
        with torch.no_grad():
            cache = model(zoo.words(1, past)).past_key_values if past else None
        now = zoo.words(1, tokens)
        program["counted"] = counted(
            lambda now=now, cache=cache: model(
                now, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        )


def programs(daemon: Daemon, directory: Path) -> list[dict[str, Any]]:
    """Of the model in the directory: sessions of other tests may be on their way out."""

    def told(*words: str) -> list[dict[str, Any]]:
        command = [str(BIN / "djinnctl"), "-H", daemon.host, "--json", *words]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["items"]

    models = {one["id"] for one in told("ps") if str(directory) in (one["path"] or "")}
    mine = [one for one in told("programs") if one["sessions"] > 0 and one["model"] in models]
    return [told("show", "--graph", one["id"])[0] for one in mine]


def measure(name: str, daemon: Daemon, scratch: Path) -> None:
    import torch

    torch.set_num_threads(1)  # a fork has none of the threads that its parent had
    os.environ["DJINN_HOST"] = daemon.host
    djinn = compare.import_torch_device()
    djinn.enable()
    entry = zoo.entry(name)
    directory = scratch / f"{name}.model"
    zoo.make_checkpoint(name, directory)
    ghost = zoo.load(directory, entry, **zoo.in_dtype("float32"))
    report: dict[str, Any] = {}
    if name in GENERATING:
        ids = zoo.words(1, zoo.TOKENS).to(ghost.device)
        ghost.generate(ids, do_sample=False, max_new_tokens=4, min_new_tokens=4)
        assert djinn.explain(ghost)["tier"] == 2, djinn.explain(ghost)
        report["programs"] = programs(daemon, directory)
        djinn.disable()
        measure_generating(name, directory, report)
    else:
        inputs = entry.forward_inputs(ghost.config, "single")
        there = {key: one.to(ghost.device) for key, one in inputs.items()}
        with torch.no_grad():
            for _ in range(3):
                ghost(**there)
        assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
        report["programs"] = programs(daemon, directory)
        djinn.disable()
        model = here(name, directory)
        for program in report["programs"]:
            program["counted"] = counted(lambda: model(**inputs))
    (scratch / f"{name}.json").write_text(json.dumps(report))


@pytest.mark.parametrize("name", [*GENERATING, *FORWARD])
def test_flops_are_those_of_torchs_own_counter(name: str, daemon: Daemon, tmp_path: Path) -> None:
    ended = children.forked(tmp_path / "log", LIMIT_S, lambda: measure(name, daemon, tmp_path))
    assert ended is None, ended
    found = json.loads((tmp_path / f"{name}.json").read_text())["programs"]
    assert len(found) == (2 if name in GENERATING else 1)
    for program in found:
        flops = sum(
            one["flops"]
            for one in program["annotations"]
            if one["op"].split(".")[0] in COUNTED and one["role"] != "rope"
        )
        assert program["not_counted"] == 0
        assert abs(flops - program["counted"]) <= NEAR * program["counted"], (
            program["id"],
            flops,
            program["counted"],
        )
