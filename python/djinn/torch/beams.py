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

from . import generation
from .job import Call, job_of
from .state import DEVICE, NotInDaemon
from .steps import over_steps
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
    given = (input_ids, logits_processor, stopping_criteria, generation_config)
    call = Call(original, model, *given, {"synced_gpus": synced_gpus}, kwargs)
    return generation.lower(call, _search, f"{WHY}, and not over steps in djinnd, because ")


def _search(call: Call) -> tuple[Any, int, str]:
    if hasattr(call.model, "_reorder_cache"):
        raise NotInDaemon("the model reorders its cache in a way of its own")
    job = job_of(call, banks=2)
    stays = call.config.do_sample or call.ids.device != DEVICE
    loop = call.original if stays else partial(_here, call.original)
    return over_steps(call, job, loop), 1, WHY


def _here(
    original: Any,
    model: Any,
    ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    **rest: Any,
) -> Any:
    """The loop with its ids and scores on the CPU, and the result on the device."""
    called = _on_device(logits_processor) if logits_processor else logits_processor
    asked = type(stopping_criteria)(
        one if type(one) in GO_ALONG else _on_device(one) for one in stopping_criteria
    )
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
