# SPDX-License-Identifier: Apache-2.0
"""transformers' options of a generation as those of djinnd's loop, or why it does not know them."""

import math
from typing import Any

import torch
from transformers.generation import logits_process, stopping_criteria

from .state import NotInDaemon
from .stopping import ASKED

STOP_TOKENS_MAX = 16

# They stand in the order in which transformers makes them (GenerationMixin._get_logits_processor of
# 5.17), and the loop applies them. Those behind the first three are for sampling alone.
PROCESSORS = (
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.MinPLogitsWarper,
)
WARPERS = PROCESSORS[3:]
FORBIDDING = PROCESSORS[1:3]


def options_of(
    config: Any, processors: Any, criteria: Any, prompt: int, max_new_tokens: int
) -> dict[str, Any]:
    """What `_device.Group.generate` takes. prompt: columns of the ids that the call is given."""
    options: dict[str, Any] = {"greedy": not config.do_sample, "max_new_tokens": max_new_tokens}
    for name in ("output_scores", "output_logits"):
        if getattr(config, name, False) and config.return_dict_in_generate:
            raise NotInDaemon(f"{name} is asked for")
    options["stop_tokens"] = _stop_tokens(criteria)
    _check_processors(processors, options)
    for processor in processors:
        _add_processor(options, processor, prompt)
    pad = config._pad_token_tensor
    options["pad_token"] = int(pad.item()) if pad is not None else 0
    return options


def _stop_tokens(criteria: Any) -> list[int]:
    stops: list[list[int]] = []
    for criterion in criteria:
        if type(criterion) is stopping_criteria.EosTokenCriteria:
            stops.append(criterion.eos_token_id.flatten().tolist())
        elif type(criterion) not in (stopping_criteria.MaxLengthCriteria, *ASKED):
            raise NotInDaemon(f"the stopping criterion {type(criterion).__name__} is Python")
    if len(stops) > 1:
        raise NotInDaemon("there are two EosTokenCriteria; the loop knows one")
    eos = stops[0] if stops else []
    if len(eos) > STOP_TOKENS_MAX:
        raise NotInDaemon(f"it has {len(eos)} end tokens; the loop knows {STOP_TOKENS_MAX}")
    return eos


def _check_processors(processors: Any, options: dict[str, Any]) -> None:
    """One of each kind, in the order that the loop has; each does what the loop does."""
    last = -1
    for processor in processors:
        kind = type(processor)
        name = kind.__name__
        if kind not in PROCESSORS:
            raise NotInDaemon(f"the logits processor {name} is Python")
        place = PROCESSORS.index(kind)
        if place == last:
            raise NotInDaemon(f"there are two {name}; the loop knows one")
        if place < last:
            raise NotInDaemon(f"the loop applies {name} before {PROCESSORS[last].__name__}")
        last = place
        if kind in WARPERS and options["greedy"]:
            raise NotInDaemon(f"a {name} is given, and nothing is drawn")
        if getattr(processor, "filter_value", -math.inf) != -math.inf:
            raise NotInDaemon(f"a {name} has a filter_value other than -inf")
        if getattr(processor, "min_tokens_to_keep", 1) != 1:
            raise NotInDaemon(f"a {name} keeps more than one token")
        if getattr(processor, "prompt_ignore_length", None):
            raise NotInDaemon(f"a {name} ignores a part of the prompt")
        if kind in FORBIDDING:
            forbidden = set(processor.eos_token_id.flatten().tolist())
            if forbidden != set(options["stop_tokens"]):
                raise NotInDaemon(f"a {name} has other end tokens than the generation")


def _add_processor(options: dict[str, Any], processor: Any, prompt: int) -> None:
    kind = type(processor)
    if kind is logits_process.RepetitionPenaltyLogitsProcessor:
        options["repetition_penalty"] = _number(processor, "penalty", 0, math.inf)
    elif kind is logits_process.MinLengthLogitsProcessor:
        options["min_new_tokens"] = max(processor.min_length - prompt, 0)
    elif kind is logits_process.MinNewTokensLengthLogitsProcessor:
        least = processor.min_new_tokens - (prompt - processor.prompt_length_to_skip)
        options["min_new_tokens"] = max(options.get("min_new_tokens", 0), least)
    elif kind is logits_process.TemperatureLogitsWarper:
        options["temperature"] = _number(processor, "temperature", 0, math.inf)
    elif kind is logits_process.TopKLogitsWarper:
        options["top_k"] = int(processor.top_k)
    elif kind is logits_process.TopPLogitsWarper:
        options["top_p"] = min(_number(processor, "top_p", 0, 2), 1.0)
    elif kind is logits_process.MinPLogitsWarper:
        options["min_p"] = _number(processor, "min_p", -1, 1)


def _number(processor: Any, name: str, above: float, below: float) -> float:
    """As the loop keeps it, in single precision: what it would round to a bound is beyond it."""
    value = getattr(processor, name)
    if not above < float(torch.tensor(value, dtype=torch.float32)) < below:
        raise NotInDaemon(f"a {type(processor).__name__} has the {name} {value}")
    return float(value)


__all__ = ["options_of"]
