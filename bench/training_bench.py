# SPDX-License-Identifier: Apache-2.0
"""Training on the device against the same lines on the CPU of this process, on as many threads.

Both arms begin with the same weights and take turns step by step, so a busy machine moves both.
Each entry says whether their losses and weights are the same bits, and how many runs djinnd
computed more than once meanwhile. Dropout is off: the device draws other numbers than the CPU.

`training_bench.py memory DEVICE` trains alone, and prints what its process has taken for it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "e2e"))

from ghost_models import minilm_directory  # noqa: E402
from private_daemon import THREADS, Daemon, running  # noqa: E402
from report import Entry, entry, report, seconds_of  # noqa: E402

REPETITIONS = 3
STEPS = 30  # of a fine-tune
TENSORS, SIZES, WARM_STEPS = 40, (1536, 384), 6  # of an optimizer's step without a model
FIRST_WARM_STEP = 2  # before it memory grows: for the state, then for what is saved of it
BATCH, TOKENS = 8, 64
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

Make = Callable[[Any], Any]  # an optimizer of parameters


def device() -> str:
    import djinn

    return str(djinn.device(0))


def repeated(daemon: Daemon) -> int:
    """Runs that were computed more than once; there is no worker before the first use."""
    return sum(int(worker["runs_repeated"]) for worker in daemon.status()["workers"])


def finish(where: str) -> None:
    """Until what was handed over to djinnd is done."""
    import djinn.torch

    if where != "cpu":
        djinn.torch._device.synchronize()


def is_same(plain: list[Any], found: list[Any]) -> float:
    """1 where each is the same bits, as in tests/device; else 0."""
    import torch

    pairs = zip(plain, found, strict=True)
    return float(all(torch.equal(a.detach(), b.detach().cpu()) for a, b in pairs))


# --- an optimizer alone


class Twin:
    """Tensors on one device, with gradients, and an optimizer of them."""

    def __init__(self, where: str) -> None:
        import torch

        torch.manual_seed(1)
        drawn = [torch.randn(2, *SIZES) for _ in range(TENSORS)]
        self.where = where
        self.tensors = [one[0].to(where) for one in drawn]
        for tensor, one in zip(self.tensors, drawn, strict=True):
            tensor.grad = one[1].to(where)
        sum(float(tensor[0, 0]) for tensor in self.tensors)  # it is there
        self.optimizer = torch.optim.AdamW(self.tensors, lr=1e-3)

    def step(self) -> None:
        self.optimizer.step()
        finish(self.where)


def adamw(daemon: Daemon) -> Iterator[Entry]:
    before = repeated(daemon)
    for _ in range(REPETITIONS):
        plain, ghost = Twin("cpu"), Twin(device())
        pairs = [(seconds_of(plain.step), seconds_of(ghost.step)) for _ in range(WARM_STEPS)]
        counters = {
            "same": is_same(plain.tensors, ghost.tensors),
            "runs_repeated": repeated(daemon) - before,
        }
        here, there = pairs[0]
        yield entry("training/adamw_first", there, of_plain=there / here, **counters)
        for here, there in pairs[FIRST_WARM_STEP:]:
            yield entry("training/adamw_warm", there, of_plain=there / here, **counters)


# --- a fine-tune of MiniLM


def minilm(where: str) -> Any:
    """With a head of two classes; all of it is trained."""
    import djinn
    import torch
    import transformers

    directory = minilm_directory()
    torch.manual_seed(1)
    djinn.enable()
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(directory, **({"djinn": False} if where == "cpu" else {}), **NO_DROPOUT)
    djinn.disable()
    assert model.device.type == where.partition(":")[0], model.device
    return model.train().requires_grad_(True)


def with_adapters(where: str) -> Any:
    """LoRA: the model's own weights are frozen."""
    import peft
    import torch

    model = minilm(where)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"]
    )
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(1)  # else the device would draw its own
    with torch.no_grad():
        for one in adapted.parameters():
            if one.requires_grad:
                one.copy_(torch.randn(one.shape, generator=generator) * 0.02)
    return adapted.train()


def batches(where: str) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(2)
    made = []
    for _ in range(STEPS):
        ids = torch.randint(1000, 20000, (BATCH, TOKENS), generator=generator)
        labels = torch.randint(0, 2, (BATCH,), generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        made.append({name: one.to(where) for name, one in batch.items()})
    return made


class FineTune:
    def __init__(self, where: str, load: Callable[[str], Any], make: Make) -> None:
        self.model = load(where)
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = make(self.trained)
        self.batches = batches(where)
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        loss = self.model(**self.batches[number]).loss
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def fine_tune(daemon: Daemon, name: str, load: Callable[[str], Any], make: Make) -> Iterator[Entry]:
    for _ in range(REPETITIONS):
        ghost, plain = FineTune(device(), load, make), FineTune("cpu", load, make)
        before = repeated(daemon)
        here = there = 0.0
        for number in range(STEPS):
            here += seconds_of(lambda: plain.step(number))  # noqa: B023
            there += seconds_of(lambda: ghost.step(number))  # noqa: B023
        same = is_same(plain.trained, ghost.trained) * float(plain.losses == ghost.losses)
        again = repeated(daemon) - before
        yield entry(name, there, of_plain=there / here, same=same, runs_repeated=again)


# --- memory


def process_kib(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def train_alone(where: str) -> None:
    """Prints the process's growth, in bytes, and holds what it has until a line comes."""
    import djinn.torch  # noqa: F401  the device
    import torch

    torch.set_num_threads(THREADS)
    small = torch.nn.Linear(8, 8).to(where)  # what PyTorch loads with the first use is none of it
    small(torch.ones(8, 8, device=where)).sum().backward()
    torch.optim.AdamW(small.parameters()).step()
    finish(where)
    before = process_kib("VmRSS")
    training = FineTune(where, minilm, plain_adamw)
    for number in range(STEPS):
        training.step(number)
    print(max(process_kib("VmHWM") - before, 0) * 1024, flush=True)
    sys.stdin.readline()


def taken_by(where: str, look: Callable[[], int]) -> int:
    """Bytes that training takes there: the process's, and what look() says while it holds them."""
    command = [sys.executable, __file__, "memory", where]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        taken = int(child.stdout.readline()) + look()
        child.communicate("\n")
    assert child.returncode == 0
    return taken


def memory() -> Iterator[Entry]:
    """In djinnd: what it granted to the session and its lane, which shrinks with neither. The
    weights of the checkpoint, which any process may have of it, are models_mib."""
    with running() as daemon:
        environment = os.environ["DJINN_HOST"]
        os.environ["DJINN_HOST"] = daemon.host

        def granted() -> int:
            status = daemon.status()
            return int(status["memory_sessions_bytes"] + status["memory_lanes_bytes"])

        start = time.perf_counter()
        here, there = taken_by("cpu", lambda: 0), taken_by(device(), granted)
        yield entry(
            "training/memory",
            time.perf_counter() - start,
            of_plain=there / here,
            plain_mib=here / 2**20,
            ghost_mib=there / 2**20,
            models_mib=daemon.status()["memory_models_bytes"] / 2**20,
        )
        os.environ["DJINN_HOST"] = environment


def sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3)


def plain_adamw(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False, fused=False)


def default_adamw(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4)


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        return train_alone(sys.argv[2])
    with running() as daemon:
        os.environ["DJINN_HOST"] = daemon.host
        import torch

        torch.set_num_threads(THREADS)
        tunes: dict[str, tuple[Callable[[str], Any], Make]] = {
            "training/minilm_sgd": (minilm, sgd),
            "training/minilm_adamw": (minilm, plain_adamw),
            "training/minilm_adamw_default": (minilm, default_adamw),
            "training/lora": (with_adapters, plain_adamw),
        }
        runs = {name: partial(fine_tune, daemon, name, *how) for name, how in tunes.items()}
        report({"training/adamw": partial(adamw, daemon), **runs, "training/memory": memory})
    return None


if __name__ == "__main__":
    main()
