# SPDX-License-Identifier: Apache-2.0
"""A generation one step at a time: transformers' own loop, its forwards programs in djinnd."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from . import groups
from .groups import GroupCache
from .job import Call, Job, group_for
from .state import NotInDaemon


def step(cache: GroupCache, input_ids: torch.Tensor) -> Any:
    """A forward of the model that the cache was made for, without its Python."""
    held = cache._held
    if held.tokens:  # of the prompt; the cache has those before
        input_ids, held.tokens = input_ids[:, -held.tokens :], 0
    tokens = input_ids.shape[1]
    program = held.loop.at(tokens, held.length)
    padding = held.padding if held.length == 0 and held.is_padded else []
    logits = held.group.step(program.template, input_ids, padding)
    held.length += tokens
    return program.output(logits=logits, past_key_values=cache)


def is_step(cache: Any) -> bool:
    """Whether a forward with this cache is a step of such a loop."""
    held = groups.held_of(cache)
    return held is not None and held.loop is not None


def over_steps(call: Call, job: Job, loop: Any = None) -> Any:
    """The call in Python, or by that loop, where each forward is a step in djinnd: it makes its
    mask and positions there, so the loop need not go on with these."""
    left = ("attention_mask", "position_ids")
    kwargs = {name: one for name, one in call.kwargs.items() if name not in left}
    with _stepping(call.model, job):
        return replace(call, original=loop or call.original, kwargs=kwargs).in_python()


@contextmanager
def _stepping(model: Any, job: Job) -> Iterator[None]:
    """Inside, forwards with the job's cache are steps."""
    if not all(program.template.steps for program in job.programs.all):
        raise NotInDaemon("its logits have other shapes at other sizes")
    held = group_for(model, job)
    groups.hold(job.cache, held)
    held.loop, held.tokens, held.ids = job.programs, job.tokens, None
    try:
        yield
    finally:
        held.loop = None


__all__ = ["is_step", "over_steps", "step"]
