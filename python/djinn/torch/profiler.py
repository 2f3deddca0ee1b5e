# SPDX-License-Identifier: Apache-2.0
"""What the device has done in this process: counters, times, and lines on request."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from . import _device, ghosts

Level = Literal["off", "interception", "shape_inference", "execution"]
LEVELS: tuple[Level, ...] = ("off", "interception", "shape_inference", "execution")


class Profiler:
    """Counts from the start of the process, or from the last `reset()`."""

    def __init__(self) -> None:
        self._start: dict[str, Any] = {}

    def reset(self) -> None:
        self._start = self._counts()

    def _counts(self) -> dict[str, Any]:
        return {**_device.stats(), "crossed": _device.crossed() or 0}

    def get_stats(self) -> dict[str, Any]:
        """Times in milliseconds, sizes in bytes.

        capture_ms      recording operators and inferring their shapes, in this process
        schedule_ms     writing graphs and handing them over
        execution_ms    waiting for djinnd
        cache_hit_rate  of recorded operators, those whose shapes were known
        bytes_crossed   all that crossed to djinnd and back in this process's session, as djinnd
                        counts it: graphs, descriptors, tensors, tokens, control messages, and this
                        question; from 0 again where djinnd was restarted
        tripped_operators  those that run in djinnd at once, because inferring the shapes of their
                        results failed or took half a second ten times in a row
        """
        raw = {
            name: value - self._start.get(name, 0) if isinstance(value, int) else value
            for name, value in self._counts().items()
        }
        looked_up = raw["recipe_hits"] + raw["recipe_misses"]
        return {
            "capture_ms": raw["capture_ns"] / 1e6,
            "schedule_ms": raw["schedule_ns"] / 1e6,
            "execution_ms": raw["wait_ns"] / 1e6,
            "cache_hit_rate": raw["recipe_hits"] / looked_up if looked_up else 1.0,
            "operators_recorded": raw["recorded"],
            "operators_run": raw["operators"],
            "runs": raw["runs"],
            "program_runs": raw["program_runs"],
            "flushes": raw["flushes"],
            "idle_flushes": raw["idle_flushes"],
            "reads": raw["reads"],
            "shadow_reads": raw["shadow_reads"],
            "bytes_up": raw["bytes_up"],
            "bytes_down": raw["bytes_down"],
            "bytes_crossed": raw["crossed"],
            "mixed_operands": raw["mixed"],
            "forked_weights": raw["forks"],
            "sealed_parameters": raw["sealed"],
            "shared_parameters": raw["shared"],
            "failed_runs": raw["failures"],
            "tripped_operators": raw["tripped"],
            "ghosts": dataclasses.asdict(ghosts.stats),
        }


_profiler = Profiler()


def get_profiler() -> Profiler:
    """The process's profiler."""
    return _profiler


def set_debug_level(level: Level) -> None:
    """Lines on stderr: each operator as it is called ("interception"), also what it gives
    ("shape_inference"), also each run that is handed over ("execution"); or none ("off")."""
    if level not in LEVELS:
        raise ValueError(f"The debug level is one of {', '.join(LEVELS)}, not {level!r}.")
    _device.set_debug_level(LEVELS.index(level))


@contextmanager
def capture() -> Iterator[None]:
    """Inside, factories that are given no device make tensors of the daemon's."""
    with torch.device("remote_accelerator", 0):
        yield


__all__ = ["Profiler", "capture", "get_profiler", "set_debug_level"]
