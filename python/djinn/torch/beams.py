# SPDX-License-Identifier: Apache-2.0
"""Beam search: transformers' own loop, here, over steps in djinnd.

A step of all beams is one program, and the beams' keys and values are rows of a sequence group that
djinnd reorders. What the loop computes of the logits, some sixty small operators for a token, it
computes here; code that it calls with ids and scores gets them where the ids were.
"""

from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from . import generation, state
from .generation import DEVICE
from .state import NotInDaemon
from .stopping import ASKED

WHY = "beam search is transformers' loop in Python"
# Criteria that go where their ids are.
GO_ALONG = (EosTokenCriteria, MaxLengthCriteria, *ASKED)


def search(
    original: Any,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    **kwargs: Any,
) -> Any:
    """In place of `GenerationMixin._beam_search`, which is `original`: as sample() of _sample."""
    kwargs = generation.of_the_model(model, kwargs)
    rest = {"generation_config": generation_config, "synced_gpus": synced_gpus}
    tier, why = 1, WHY
    try:
        if hasattr(model, "_reorder_cache"):
            raise NotInDaemon("the model reorders its cache in a way of its own")
        job = generation.job_of(
            model, input_ids, stopping_criteria, generation_config, kwargs, banks=2
        )
        with generation.stepping(model, job):
            stays = generation_config.do_sample or input_ids.device != DEVICE
            run = original if stays else partial(_here, original)
            left = generation.without_masks(kwargs)
            result = run(model, input_ids, logits_processor, stopping_criteria, **rest, **left)
    except NotInDaemon as reason:
        tier, why = 0, f"{WHY}, and not over steps in djinnd, because {reason}"
        generation.say_slow(why)
        result = original(model, input_ids, logits_processor, stopping_criteria, **rest, **kwargs)
    state.took(state.known_of(model), tier, why)
    return result


def _here(
    original: Any, model: Any, ids: torch.Tensor, processor: Any, criteria: Any, **rest: Any
) -> Any:
    """The loop with its ids and scores on the CPU, and the result on the device."""
    called = _on_device(processor) if processor else processor
    asked = type(criteria)(one if type(one) in GO_ALONG else _on_device(one) for one in criteria)
    result = original(model, ids.cpu(), called, asked, **rest)
    if isinstance(result, torch.Tensor):
        return result.to(DEVICE)
    for name in set(result) - {"past_key_values"}:
        result[name] = _moved(result[name], DEVICE)
    return result


def _moved(tree: Any, place: torch.device) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda one: one.to(place), tree)


def _on_device(call: Any) -> Any:
    """Called with the loop's tensors as if they were on the device."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(*_moved(args, DEVICE), **_moved(kwargs, DEVICE)).cpu()

    return called


__all__ = ["search"]
