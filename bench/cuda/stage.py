# SPDX-License-Identifier: Apache-2.0
"""What the measuring stages in Python share, as stage.cuh is for those in CUDA C++.

A fact is one line of JSON on stdout, flushed at once. A part is a group of measurements that fails
by itself: its error goes to stderr, and the next part runs. Exit status: 0 measured, 1 a part
failed, 77 not possible here, with the reason in the last line of stderr.
"""

import argparse
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

NOT_POSSIBLE = 77


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def not_possible(reason: str) -> NoReturn:
    say(reason)
    sys.exit(NOT_POSSIBLE)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def only(backend: str) -> AbstractContextManager[None]:
    """Where attention has this backend alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    return sdpa_kernel(names[backend])


class Stage:
    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.failed = 0

    def left(self) -> float:
        return self.end - time.monotonic()

    @staticmethod
    def fact(name: str, value: float | bool | str, unit: str = "", detail: str = "") -> None:
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"{name}: the figure is not finite")
            value = float(f"{value:.6g}")
        line = {"name": name, "value": value}
        line |= {"unit": unit} if unit else {}
        line |= {"detail": detail} if detail else {}
        print(json.dumps(line, ensure_ascii=False), flush=True)

    def part(self, name: str, measure: Callable[[], None]) -> None:
        if self.left() <= 0:
            say(f"{name}: left out, the time is up")
            return
        try:
            measure()
        except Exception as error:
            traceback.print_exc()
            say(f"{name} failed: {first_line(error)}")
            self.failed += 1


def run(measure: Callable[[Stage], None], seconds: float, about: str) -> NoReturn:
    """`measure` runs the parts on the first CUDA device; their order is that of importance."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="at most; default %(default)s"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # PyTorch says at length why a backend does not apply
    stage = Stage(options.seconds)
    try:
        import torch
    except ImportError as error:
        not_possible(f"PyTorch cannot be imported: {first_line(error)}")
    if not torch.cuda.is_available():
        not_possible("no CUDA device: PyTorch finds none")
    stage.fact("device", torch.cuda.get_device_name(0), detail=f"PyTorch {torch.__version__}")
    measure(stage)
    sys.exit(1 if stage.failed else 0)
