# SPDX-License-Identifier: Apache-2.0
"""A little work on the fake runtime, twice: the second time less of it. Prints a JSON object: the
error of each, or nothing."""

import json

import torch
from fake_process import mark

MUCH = 128 << 20
LITTLE = 1 << 10


def work(size: int) -> None:
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    x = torch.ones(8, 8, device="cuda")
    torch.nn.functional.linear(x, x)
    memory[:1].cpu()


def error_of(name: str, size: int) -> str:
    mark(name)
    try:
        work(size)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    with torch.inference_mode():
        print(json.dumps({"work": error_of("work", MUCH), "again": error_of("again", LITTLE)}))


if __name__ == "__main__":
    main()
