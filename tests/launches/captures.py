# SPDX-License-Identifier: Apache-2.0
"""Captures of CUDA graphs by PyTorch on the fake runtime. Sections of the log: `CASE/captured`, and
`CASE/replayed` for those that can be. Prints a JSON object: the error of each case, or null."""

import json
from collections.abc import Callable

import torch
from fake_process import mark

BIG = 64 << 20  # more than the allocator has in stock


def linear(x: torch.Tensor) -> object:
    return torch.nn.functional.linear(x, x).relu()


def big(x: torch.Tensor) -> object:
    return torch.empty(BIG, device="cuda").add_(1)


CASES: dict[str, Callable[[torch.Tensor], object]] = {
    "linear": linear,
    "memory": big,
    "item": lambda x: x.sum().item(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "to the host": lambda x: x.cpu(),
    "wait": lambda x: torch.cuda.synchronize(),
}


def attempt(name: str, case: Callable[[torch.Tensor], object], x: torch.Tensor) -> str | None:
    graph = torch.cuda.CUDAGraph()
    mark(f"{name}/captured")
    try:
        with torch.cuda.graph(graph):
            case(x)
    except Exception as error:
        return str(error)
    mark(f"{name}/replayed")
    graph.replay()
    return None


def main() -> None:
    x = torch.ones(8, 8, device="cuda")
    with torch.inference_mode():
        linear(x)  # cuBLAS makes its handle and its workspace
        print(json.dumps({name: attempt(name, case, x) for name, case in CASES.items()}))
    mark("end")


if __name__ == "__main__":
    main()
