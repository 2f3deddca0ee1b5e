# SPDX-License-Identifier: Apache-2.0
"""What became of a model's calls: `djinn.explain`."""

from typing import Any

import torch

from . import _device, huggingface, state
from .ghosts import DEVICE, ghost_of

DISABLED = "djinn is not enabled: transformers runs as it is, and each operator is recorded"
FOREIGN = "it is no model of transformers: each operator of a call of it is recorded"
DISABLED_SINCE = "djinn has been disabled since: it sees no call, and each operator is recorded"
GONE = (
    "its weights are gone with djinnd's session, which has ended: djinnd was stopped or restarted, "
    "or the session was terminated. Load the model again"
)
LOCAL = "it is no ghost: its weights are in this process, and djinnd runs none of its calls"


def explain(model: Any = None) -> dict[str, Any]:
    """Which tier the last call or generation of a model, or of a pipeline's, took, and why not a
    higher one; and how many bytes have crossed to djinnd and back in this process's session, as
    djinnd counts them (None where there is no session). Where djinn has been disabled since, that
    call is the last which was seen, and the reason says so.

    0: its operators were recorded one by one; so it is, too, with whatever was called otherwise
    than as model(...) or model.generate(...), with a model whose first call djinn, disabled, does
    not see, and for other modules than transformers' own. 1: its forward was replayed as a program.
    2: the loop over tokens ran in djinnd; the reason says so where the prompt did not. None: there
    was no such call yet, or the model is not djinnd's, or is gone with the session that held it.

    The form of its weights: "int8", or None where they are as its files have them.

    And how its programs compute: their numerics ("exact", "fast", "fast-only"), how many there are,
    how many nodes of them djinnd's own kernels compute (fast_nodes), and why others that a pass of
    fast numerics looks for stayed PyTorch's (left_exact: how many, by pass and reason). A program
    that asked to be fast and has no fast node is exact."""
    if not isinstance(model, torch.nn.Module):
        model = getattr(model, "model", model)  # a pipeline's
    if not isinstance(model, torch.nn.Module):
        given = "nothing" if model is None else type(model).__name__
        raise TypeError(
            f"djinn.explain is given a model, or a pipeline that has one, not {given}. "
            "djinn.get_profiler().get_stats() counts what the whole process did."
        )
    one = getattr(model, "_orig_mod", model)  # torch.compile's
    inside = getattr(one, "get_base_model", None)  # PEFT's models call the one inside of them
    one = one if inside is None else inside()
    tier, why = _explain(one)
    ghost = ghost_of(one)
    return {
        "tier": tier,
        "why": why,
        "bytes_crossed": _device.crossed(),
        "weights": "int8" if ghost is not None and ghost.is_int8 else None,
        **_numerics(one),
    }


def _numerics(model: Any) -> dict[str, Any]:
    """Of all programs that the model has now."""
    programs = state.programs_of(model)
    left: dict[str, int] = {}
    for program in programs:
        for name, reasons in program.left.items():
            for reason, nodes in reasons.items():
                left[f"{name}: {reason}"] = left.get(f"{name}: {reason}", 0) + nodes
    return {
        "numerics": sorted({program.numerics for program in programs}),
        "programs": len(programs),
        "fast_nodes": sum(program.fast_nodes for program in programs),
        "left_exact": left,
    }


def _explain(model: Any) -> tuple[int | None, str]:
    if not huggingface.is_ghost(model):
        return None, LOCAL
    if _is_gone(model):
        return None, GONE
    kinds = {(kind.__module__, kind.__name__) for kind in type(model).__mro__}
    if ("transformers.modeling_utils", "PreTrainedModel") not in kinds:
        return 0, FOREIGN
    from transformers import GenerationMixin  # which is there, since the model is its

    known = state.last_called(model, GenerationMixin)
    if huggingface.is_enabled():
        return known.tier, known.why
    if known.why == state.NOT_SEEN:
        return 0, DISABLED
    return known.tier, "; ".join(filter(None, (known.why, DISABLED_SINCE)))


def _is_gone(model: torch.nn.Module) -> bool:
    _device.session()  # looks whether it lives
    return any(_device.is_lost(one.detach()) for one in model.parameters() if one.device == DEVICE)


__all__ = ["explain"]
