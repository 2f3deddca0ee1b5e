# SPDX-License-Identifier: Apache-2.0
"""Processes of a benchmark that do what they are told through a pipe, until they are told None."""

import multiprocessing
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any


def spawned(stack: ExitStack, target: Callable[..., None], *arguments: Any) -> Connection:
    """The pipe to a new process, which runs target(its end, *arguments) and ends with the stack."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    stack.callback(process.join, 30)
    stack.callback(here.send, None)
    return here
