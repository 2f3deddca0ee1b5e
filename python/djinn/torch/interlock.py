# SPDX-License-Identifier: Apache-2.0
"""The capability interlock: what happens when djinnd cannot take a model.

That is an error with the numbers. Only a program that set `djinn.config.fallback = "local"` gets a
model of its own, and only if what it needs, with a margin, is free.
"""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path

import djinn
from djinn.errors import Error, HandleError, LimitError, LostError, ResourceError

from . import _device
from .sizes import size_text

# Loading takes so much beside the weights themselves: conversions, buffers, the first activations.
MARGIN = 0.2
ABSENT = (HandleError, LostError)  # nobody answers
FULL = ("out_of_memory", "quota_exceeded")
FREE = (
    "Free memory of djinnd's: del what this process no longer needs, and call "
    "torch.remote_accelerator.empty_cache(); or 'djinnctl ps', then 'djinnctl unload'. "
)
REFUSALS = (HandleError, LimitError, LostError, ResourceError)


class Unavailable(Error):
    """djinnd cannot be reached, or refused a model; `needed` is the size of its weights."""

    def __init__(self, cause: Error, needed: int) -> None:
        super().__init__(cause.number, cause.code, refusal(cause, needed, available_bytes()))
        self.needed = needed


class LocalLoadRefused(ResourceError):
    """The local fallback was asked for, and does not fit."""


def refusal(cause: Exception, needed: int, available: int) -> str:
    spare = f"this machine has {size_text(available)} to spare"
    local = 'set djinn.config.fallback = "local", or pass djinn=False.'
    is_full = getattr(cause, "code", None) in FULL
    total = _device.memory()["total"] if is_full else 0
    if 0 < total < needed:
        return (
            f"djinnd does not take this model: its weights need {size_text(needed)}, which cannot "
            f"fit in {size_text(total)}, all that djinnd may grant. Start djinnd with more memory "
            f"(--memory, memory.limit). To load the model into this process instead ({spare}),"
            f" {local}"
        )
    said = f"djinnd does not take this model: {cause}"
    if not is_full and not isinstance(cause, ABSENT):
        return f"{said} To load it into this process instead, {local}"
    # The cause says what to start where nobody answers.
    way_out = FREE if is_full else ""
    return (
        f"{said} Its weights need {size_text(needed)}, and {spare}. {way_out}To load the model "
        f"into this process instead, {local}"
    )


def reach(needed: int) -> None:
    """Raises Unavailable when nobody answers."""
    try:
        djinn.connect(name="interlock", observer=True).close()
    except REFUSALS as error:
        raise Unavailable(error, needed) from error


def weight_bytes(tensors: Iterable[tuple[int, tuple[int, ...]]]) -> int:
    """The bytes of weights, each given as (element size, sizes)."""
    return sum(element * math.prod(sizes) for element, sizes in tensors)


def available_bytes() -> int:
    """What this process could take without swapping: MemAvailable, and what its cgroup leaves."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (available,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    return min([available, *_cgroup_rooms()])


def _cgroup_rooms() -> Iterable[int]:
    """The room below each limit of cgroup version 2 that holds this process."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line[3:].lstrip("/") for line in own if line.startswith("0::")), None)
    if path is None:
        return
    root = Path("/sys/fs/cgroup")
    for group in [root / path, *(root / path).parents]:
        if not group.is_relative_to(root):
            return
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
        except OSError:
            continue
        if limit != "max":
            yield max(int(limit) - used, 0)


def audit(refused: Unavailable) -> None:
    """Allows a local load, with a warning, or raises LocalLoadRefused with the numbers."""
    wanted = math.ceil(refused.needed * (1 + MARGIN))
    available = available_bytes()
    if wanted > available:
        raise LocalLoadRefused(
            *(400, "out_of_memory"),
            f"The model is not loaded locally: its weights need {size_text(refused.needed)}, "
            f"{size_text(wanted)} with a margin of {MARGIN:.0%}, and {size_text(available)} are "
            "available. Free memory, choose a smaller model or dtype, or make djinnd reachable.",
        ) from refused
    warnings.warn(
        f"djinnd does not take this model: {refused.__cause__} It is loaded into this process, as "
        f"djinn.config.fallback says: {size_text(refused.needed)} of {size_text(available)} "
        "available.",
        RuntimeWarning,
        stacklevel=4,
    )
