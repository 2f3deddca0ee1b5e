# SPDX-License-Identifier: Apache-2.0
"""What a token takes here and in others' programs, of the floor, in one run whose arms alternate.

Each program runs in an environment of its own (README.md), with the same model, threads and spin
counts. The floor (../floor.py) is the reading of the weights by as many threads, measured between
the arms. In int8 each program makes its own form of the model in bfloat16.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests" / "e2e"), str(HERE.parent)]

from floor import Floor, least  # noqa: E402
from ghost_models import gpt2, qwen  # noqa: E402
from private_daemon import THREADS, running  # noqa: E402
from report import LONG, Entry, entry, report  # noqa: E402

ENVIRONMENTS = ROOT / "build" / "peers"
REPETITIONS = 3
CONTEXT = 128
COMPARED = 8  # greedy tokens that all programs must agree on in float32
PLAIN = ("bfloat16", "float32")
INT8_BYTES = 34 / 32  # of a value: 32 and a scale of 16 bits, as djinnd and llama.cpp have them


@dataclass(frozen=True)
class Peer:
    script: str
    environment: str = ""  # "": that of djinn and transformers
    words: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = PLAIN

    @property
    def python(self) -> Path:
        return (ENVIRONMENTS / self.environment / "bin/python") if self.environment else PYTHON


PYTHON = Path(sys.executable)
PEERS = {
    "djinn_fast": Peer("transformers_arm.py", words=("fast",), dtypes=(*PLAIN, "int8")),
    "djinn_exact": Peer("transformers_arm.py", words=("exact",)),
    "eager": Peer("transformers_arm.py", words=("eager",)),
    "compiled": Peer("transformers_arm.py", words=("compiled",)),
    "llama_cpp": Peer("llama_cpp_arm.py", "llama-cpp", dtypes=(*PLAIN, "int8")),
    "openvino": Peer("optimum_arm.py", "openvino", ("openvino",), (*PLAIN, "int8")),
    # Its kernels for the CPU know no bfloat16.
    "onnxruntime": Peer("optimum_arm.py", "onnxruntime", ("onnxruntime",), ("float32",)),
}


MODELS = {"qwen": qwen, "gpt2": gpt2}


class Arm:
    """A peer's process with a model."""

    def __init__(self, stack: ExitStack, peer: Peer, directory: str, dtype: str) -> None:
        command = [str(peer.python), str(HERE / peer.script), directory, dtype, str(THREADS)]
        self.process = subprocess.Popen(
            [*command, *peer.words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(self.end)

    def ask(self, **asked: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def bytes_of(model: Any, dtype: str) -> int:
    """Of its weights, matrices of which are in the form that is asked for."""
    weights = list(model.parameters())
    if dtype != "int8":
        return sum(one.nbytes for one in weights)
    elements = sum(one.numel() for one in weights if one.ndim > 1)
    return int(elements * INT8_BYTES) + sum(one.nbytes for one in weights if one.ndim <= 1)


def decode(name: str, make: Callable[[], Any], dtype: str) -> Iterator[Entry]:
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(THREADS)
    with ExitStack() as stack:
        daemon = stack.enter_context(running())
        os.environ["DJINN_HOST"] = daemon.host
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bench."))
        model = make().to(torch.float32 if dtype == "float32" else torch.bfloat16)
        model.save_pretrained(directory)
        floor = Floor(bytes_of(model, dtype))
        del model
        prompt = torch.randint(3, 500, (CONTEXT,)).tolist()
        arms = {
            kind: Arm(stack, peer, directory, dtype)
            for kind, peer in PEERS.items()
            if dtype in peer.dtypes
        }
        # As many as are measured: who compiles for a length has done so before the clock runs.
        tokens = {
            kind: arm.ask(prompt=prompt, tokens=LONG)[:COMPARED] for kind, arm in arms.items()
        }
        if dtype == "float32":
            same = [found == tokens["eager"] for found in tokens.values()]
            assert all(same), f"{name}: not the same model: {tokens}"
        for _ in range(REPETITIONS):
            seconds: dict[str, float] = {}
            reads = [floor.measure()]
            for kind, arm in arms.items():
                seconds[kind] = arm.ask(prompt=prompt)
                reads.append(floor.measure())
            of_all = least(*reads)
            yield entry(
                name,
                seconds["djinn_fast"],
                floor_ms=of_all * 1e3,
                floor_huge=floor.huge,
                **{f"{kind}_of_floor": one / of_all for kind, one in seconds.items()},
                **{f"fast_of_{kind}": seconds["djinn_fast"] / one for kind, one in seconds.items()},
            )


def main() -> None:
    rows = [
        *((model, make, dtype) for model, make in MODELS.items() for dtype in PLAIN),
        ("qwen", qwen, "int8"),
    ]
    models = {
        f"peers/{model}_{dtype}": partial(decode, f"peers/{model}_{dtype}", make, dtype)
        for model, make, dtype in rows
    }
    report(models)


if __name__ == "__main__":
    main()
