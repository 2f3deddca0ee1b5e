# SPDX-License-Identifier: Apache-2.0
"""Two processes with ghosts of one model: its weights are in memory once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import children
import pytest
from private_daemon import BIN, Daemon, running, wait_until

pytest.importorskip("djinn.torch", exc_type=ImportError)

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
# What two clients may grow by, of which no byte is a weight's: allocators, shapes, programs.
GROWTH_MAX = 60 * MIB
NEIGHBOUR = Path(__file__).with_name("neighbour.py")


def write_model(directory: Path, layers: int) -> None:
    """A Llama of 13 MB and 17 MB a layer, in float32."""
    import torch
    import transformers

    torch.manual_seed(12)
    config = transformers.LlamaConfig(
        **{"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8},
        **{"num_hidden_layers": layers, "vocab_size": 3200, "tie_word_embeddings": False},
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def weights_of(daemon: Daemon) -> dict[str, int]:
    """What djinnctl mem says of the pool of weights."""
    done = subprocess.run(
        [BIN / "djinnctl", "mem", "--json", "-H", daemon.host],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    pools = json.loads(done.stdout)["items"]
    return next(pool for pool in pools if pool["pool"] == "weights")


class Neighbour:
    def __init__(self, daemon: Daemon, *directories: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(NEIGHBOUR), *map(str, directories)],
            env={**os.environ, **children.ENVIRONMENT, "DJINN_HOST": daemon.host},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the neighbour ended by itself"
        return line

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.go_on()
        assert self.process.wait(60) == 0


@contextmanager
def two(daemon: Daemon, *directories: Path) -> Iterator[list[Neighbour]]:
    with ExitStack() as stack:
        both = []
        for _ in range(2):
            both.append(Neighbour(daemon, *directories))
            stack.callback(both[-1].process.kill)
        yield both


def step(both: list[Neighbour]) -> list[str]:
    """What each says when both may go on."""
    for one in both:
        one.go_on()
    return [one.hear() for one in both]


@pytest.mark.ci
def test_two_processes_hold_one_copy_of_the_weights(daemon: Daemon, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    write_model(small, 1)
    write_model(large, 12)
    weights = (large / "model.safetensors").stat().st_size
    assert weights > 200 * MIB
    with two(daemon, small, large) as both:
        assert [one.hear() for one in both] == ["warm", "warm"]
        before, status = sum(map(int, step(both))), daemon.status()
        others = weights_of(daemon)
        digests = step(both)
        assert digests[0] == digests[1]
        after, found = sum(map(int, step(both))), daemon.status()
        assert after - before < GROWTH_MAX < weights / 3
        held = found["memory_models_bytes"] - status["memory_models_bytes"]
        assert 0.99 * weights < held < 1.05 * weights
        shown = weights_of(daemon)
        assert shown["reserved_bytes"] - others["reserved_bytes"] == held
        assert shown["mapped_bytes"] - others["mapped_bytes"] == held
        assert shown["cached_bytes"] == others["cached_bytes"], "both processes hold it"
        assert weights * 0.99 < found["bytes_read"] - status["bytes_read"] < weights * 1.01
        assert found["models"] == status["models"] + 1
        assert 2 in [model["leases"] for model in daemon.observer.models()]
        for one in both:
            one.end()


FROM_PRETRAINED = """
import sys, djinn
from transformers import AutoModelForCausalLM
djinn.enable()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(float(model(model.dummy_inputs["input_ids"]).logits.sum().cpu()))
"""


def llama_in_shards(directory: Path) -> Path:
    write_model(directory, 1)
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(directory)
    sharded = directory / "sharded"
    model.save_pretrained(sharded, max_shard_size="10MB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    return sharded


@pytest.mark.parametrize("kind", ["bytes", "shards"])
def test_a_model_that_djinnctl_loaded_costs_a_ghost_no_byte(kind: str, tmp_path: Path) -> None:
    directory = ROOT / "models" / "bytes" if kind == "bytes" else llama_in_shards(tmp_path)
    with running() as daemon:
        host = ["-H", daemon.host]
        subprocess.run([BIN / "djinnctl", "load", directory, *host], check=True, timeout=60)
        before = daemon.status()
        environment = {**os.environ, **children.ENVIRONMENT, "DJINN_HOST": daemon.host}
        subprocess.run(
            [sys.executable, "-c", FROM_PRETRAINED, directory],
            **{"env": environment, "check": True, "timeout": 120},
        )
        after = daemon.status()
        assert len(daemon.observer.models()) == 1
        assert after["memory_models_bytes"] == before["memory_models_bytes"]
        assert after["bytes_read"] == before["bytes_read"]


def test_a_process_says_how_long_its_ghosts_weights_stay(tmp_path: Path) -> None:
    write_model(tmp_path, 1)
    source = """
import sys, djinn
from transformers import AutoModelForCausalLM
djinn.enable()
djinn.config.keep_alive = float(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""
    with running() as daemon:
        environment = {**os.environ, **children.ENVIRONMENT, "DJINN_HOST": daemon.host}
        for seconds, left in (("inf", 1), ("0", 0)):
            command = [sys.executable, "-c", source, str(tmp_path), seconds]
            subprocess.run(command, env=environment, check=True, timeout=120)
            wait_until(lambda n=left: len(daemon.observer.models()) == n, f"{left} models are left")
