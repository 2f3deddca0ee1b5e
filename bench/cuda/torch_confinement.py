#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stage 03: what PyTorch on a GPU still does in a process that may open nothing any more.

A process makes its context, then forbids itself by seccomp to open a path, to make a socket and to
start a program, and goes through operators: `cold`, where it has only added two tensors before, and
`warm`, where it has run each of them once, in another shape. What fails cold and works warm is to
be loaded before a worker is confined; what fails warm loads something for each shape.
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stage import Stage, first_line, run

CHILD = "--confined"
CHILD_LIMIT_S = 60
CONFINED = "a process may open nothing any more"
DEVICE = "cuda"

# x86-64: open, openat, openat2, socket, connect, execve, execveat
FORBIDDEN = (2, 257, 437, 41, 42, 59, 322)
PR_SET_NO_NEW_PRIVS = 38
SYS_SECCOMP, SET_MODE_FILTER, FLAG_TSYNC = 317, 1, 1
LOAD_NUMBER, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def forbid_opening() -> None:
    """For all threads of this process and for good."""
    steps = [struct.pack("HBBI", LOAD_NUMBER, 0, 0, 0)]
    for left, number in enumerate(FORBIDDEN):
        to_refusal = len(FORBIDDEN) - left
        steps.append(struct.pack("HBBI", JUMP_EQUAL, to_refusal, 0, number))
    steps.append(struct.pack("HBBI", RETURN, 0, 0, ALLOW))
    steps.append(struct.pack("HBBI", RETURN, 0, 0, REFUSE))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no new privileges")
    if libc.syscall(SYS_SECCOMP, SET_MODE_FILTER, FLAG_TSYNC, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
    except PermissionError:
        return
    raise RuntimeError("the filter does not refuse to open a path")


def random_of(*shape: int, dtype: str = "bfloat16") -> Any:
    import torch

    return torch.randn(*shape, device=DEVICE, dtype=getattr(torch, dtype))


def attention(n: int, cudnn: bool, dtype: str = "bfloat16") -> Any:
    import torch

    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    query = random_of(1, 8, 1, 64, dtype=dtype)
    key, value = (random_of(1, 8, 500 + n, 64, dtype=dtype) for _ in range(2))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def operators() -> dict[str, Callable[[int], Any]]:
    """Each takes a number, which changes its shapes."""
    import torch

    f = torch.nn.functional

    def linear(n: int, rows: int, dtype: str) -> Any:
        width = 512 + 64 * n
        return f.linear(random_of(rows, width, dtype=dtype), random_of(256, width, dtype=dtype))

    return {
        "linear of 1 row, bf16": lambda n: linear(n, 1, "bfloat16"),
        "linear of 64 rows, bf16": lambda n: linear(n, 64, "bfloat16"),
        "linear of 64 rows, fp32": lambda n: linear(n, 64, "float32"),
        "layer_norm": lambda n: f.layer_norm(random_of(4, 512 + n), [512 + n]),
        "softmax": lambda n: f.softmax(random_of(4, 512 + n), -1),
        "embedding": lambda n: f.embedding(torch.arange(n + 3, device=DEVICE), random_of(99, 64)),
        "argmax": lambda n: random_of(4, 512 + n).argmax(-1),
        "topk": lambda n: random_of(4, 5000 + n).topk(50),
        "sort": lambda n: random_of(4, 5000 + n).sort(-1),
        "cumsum": lambda n: random_of(4, 5000 + n).cumsum(-1),
        "index_select": lambda n: random_of(99, 64).index_select(
            0, torch.arange(n + 3, device=DEVICE)
        ),
        "conv2d": lambda n: f.conv2d(random_of(1, 8, 32 + n, 32), random_of(16, 8, 3, 3)),
        "attention, cuDNN": lambda n: attention(n, True),
        "attention, flash": lambda n: attention(n, False),
        "attention, fp32": lambda n: attention(n, False, "float32"),
        "to the host": lambda n: random_of(512 + n).cpu(),
    }


def confined(how: str) -> int:
    import torch

    stage = Stage(CHILD_LIMIT_S)
    (random_of(8) + random_of(8)).cpu()
    if how == "warm":
        for operator in operators().values():
            operator(1)
    torch.cuda.synchronize()
    forbid_opening()
    stage.fact(f"{CONFINED}, {how}", True)
    for name, operator in operators().items():
        fact = f"{name}, in a process that may open nothing, {how}"
        try:
            for n in (2, 3):
                operator(n)
                torch.cuda.synchronize()
            stage.fact(fact, "works")
        except Exception as error:
            stage.fact(fact, first_line(error))
    return 0


def run_child(stage: Stage, how: str) -> None:
    """An operator that ends its process, or never ends, is what we want to know, and the last."""
    command = [sys.executable, str(Path(__file__).resolve()), CHILD, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(CHILD_LIMIT_S, process.kill)
    killer.start()
    assert process.stdout is not None
    confined = False
    for line in process.stdout:
        confined |= CONFINED in line
        print(line, end="", flush=True)
    status = process.wait()
    killed = not killer.is_alive()
    killer.cancel()
    if not confined:
        raise RuntimeError(f"its process ended with {status}, before it was confined")
    ended = "well" if status == 0 else f"in the next operator, with {status}"
    if killed:
        ended = "not: the next operator waits for ever"
    stage.fact(f"a process that may open nothing, {how}, ended", ended)


def measure(stage: Stage) -> None:
    for how in ("warm", "cold"):
        stage.part(how, partial(run_child, stage, how))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        sys.exit(confined(sys.argv[2]))
    run(measure, 2.0 * CHILD_LIMIT_S, __doc__.splitlines()[0])
