# SPDX-License-Identifier: Apache-2.0
"""Trains the byte model that this folder ships, once, and measures it on text it has never seen.

    python models/bytes/train.py             train, or go on from the checkpoint; then evaluate
    python models/bytes/train.py --evaluate  bits per byte of the shipped weights, and two samples

A step's batch and learning rate depend on the seed and the step's number alone, so a run that was
interrupted goes on as if it had not been. Checkpoints lie under build/; remove them to start anew.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from corpus import Split, load_corpus
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent
CHECKPOINT = FOLDER.parents[1] / "build" / "models" / "bytes" / "checkpoint.pt"

BEGIN, END = 256, 257  # a token below 256 is that byte
SEED = 1
TOKENS_PER_STEP = 4096
STEPS_SHORT, SHORT = 850, 256  # most is learned from short windows, which cost less
STEPS_LONG, LONG = 200, 1024  # the last steps teach the positions up to the full context
STEPS = STEPS_SHORT + STEPS_LONG
WARM_UP_STEPS = 100
LEARNING_RATE = 6e-3
COSINE_STEPS = 2300  # the rate falls slowly along this half cosine,
COOL_DOWN_STEPS = 400  # and along a straight line to nothing in the last steps
BUDGET_S = 30 * 60  # of two cores' time; a run that meets it stops and ships what it has
CHECKPOINT_EVERY = 50


def new_model() -> LlamaForCausalLM:
    """1.93 million parameters: 7.7 MB in float32, which every device computes alike."""
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=192,
        intermediate_size=480,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=LONG,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=END,
    )
    torch.manual_seed(SEED)
    return LlamaForCausalLM(config)


def token_stream(documents: list[str]) -> Tensor:
    """All documents behind one another, each between BEGIN and END; int64 of shape [tokens]."""
    tokens: list[int] = []
    for document in documents:
        tokens += [BEGIN, *document.encode(), END]
    return torch.tensor(tokens)


def batch_of_step(stream: Tensor, step: int) -> Tensor:
    """Windows at random places; [rows, window + 1], the last column being a target only."""
    window = SHORT if step < STEPS_SHORT else LONG
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    rows = TOKENS_PER_STEP // window
    starts = torch.randint(len(stream) - window, (rows, 1), generator=generator)
    return stream[starts + torch.arange(window + 1)]


def learning_rate(step: int) -> float:
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    slow = 0.5 * (1.0 + math.cos(math.pi * step / COSINE_STEPS))
    cool = min(1.0, (STEPS - step) / COOL_DOWN_STEPS)
    return LEARNING_RATE * warm * slow * cool


def new_optimizers(model: LlamaForCausalLM) -> list[Optimizer]:
    """Muon for the matrices: after 120 steps at one rate it led AdamW, which has the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def train_step(
    model: LlamaForCausalLM, optimizers: list[Optimizer], batch: Tensor, rate: float
) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def train(model: LlamaForCausalLM, stream: Tensor) -> None:
    """Runs from the checkpoint, if there is one, to the last step or the end of the budget.

    Time is the processor's, halved: what two cores would take that have nothing else to do.
    """
    optimizers = new_optimizers(model)
    step, spent_s = load_checkpoint(model, optimizers)
    spent_before_s = spent_s - time.process_time() / 2
    while step < STEPS and (spent_s := spent_before_s + time.process_time() / 2) < BUDGET_S:
        loss = train_step(model, optimizers, batch_of_step(stream, step), learning_rate(step))
        step += 1
        if step % CHECKPOINT_EVERY == 0:
            save_checkpoint(model, optimizers, step, spent_s)
            print(f"step {step:5d}  {spent_s:6.0f} s  {loss / math.log(2):.3f} bits", flush=True)


def save_checkpoint(
    model: LlamaForCausalLM, optimizers: list[Optimizer], step: int, spent_s: float
) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "step": step,
        "spent_s": spent_s,
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    fresh = CHECKPOINT.with_suffix(".new")
    torch.save(state, fresh)
    fresh.replace(
        CHECKPOINT
    )  # an interruption leaves the old file or the new one, never half of one


def load_checkpoint(model: LlamaForCausalLM, optimizers: list[Optimizer]) -> tuple[int, float]:
    """The step to go on from, and the seconds already spent."""
    if not CHECKPOINT.exists():
        return 0, 0.0
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"], state["spent_s"]


@torch.inference_mode()
def bits(model: LlamaForCausalLM, stream: Tensor) -> float:
    """Sum over all tokens but the first, each predicted from the 512 before it or more."""
    stride = LONG // 2
    total = 0.0
    for end in range(stride, len(stream) + stride, stride):
        window = stream[max(0, end - LONG) : end]
        logits = model(input_ids=window[None, :-1], use_cache=False).logits[0]
        nats = functional.cross_entropy(logits, window[1:], reduction="none")
        seen_before = 0 if end == stride else LONG - stride - 1
        total += nats[seen_before:].sum().item() / math.log(2)
    return total


def evaluate(sources: list[Split]) -> None:
    """Held-out bits per byte of what is shipped: BEGIN and END cost bits, but are not bytes."""
    model = LlamaForCausalLM.from_pretrained(FOLDER).eval()
    costs = [bits(model, token_stream(source.held_out)) for source in sources]
    sizes = [sum(len(text.encode()) for text in source.held_out) for source in sources]
    for source, cost, size in zip(sources, costs, sizes, strict=True):
        print(f"{source.name:16} {size:7d} bytes held out  {cost / size:.3f} bits per byte")
    print(
        f"{'both':16} {sum(sizes):7d} bytes held out  {sum(costs) / sum(sizes):.3f} bits per byte"
    )
    print_samples(model)


def print_samples(model: Any) -> None:  # Any: transformers types no class of its own as generating
    prompt = torch.tensor([[BEGIN, *b":daemon: /d"]])
    greedy = model.generate(prompt, max_new_tokens=300, do_sample=False)
    torch.manual_seed(SEED)
    sampled = model.generate(
        prompt, max_new_tokens=600, do_sample=True, temperature=0.7, top_p=0.95
    )
    for name, tokens in (("greedy", greedy), ("temperature 0.7", sampled)):
        text = bytes(token for token in tokens[0].tolist() if token < BEGIN)
        print(f"\n--- {name}\n{text.decode(errors='replace')}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--evaluate", action="store_true", help="measure the shipped weights only"
    )
    only_evaluate = arguments.parse_args().evaluate
    torch.set_num_threads(2)
    sources = load_corpus()
    if not only_evaluate:
        model = new_model()
        train(model, token_stream([text for source in sources for text in source.train]))
        model.save_pretrained(FOLDER)
    evaluate(sources)


if __name__ == "__main__":
    main()
