# SPDX-License-Identifier: Apache-2.0
"""`generate()` in the daemon: the loop over tokens runs there, without Python.

    capture.py   a model's forward as programs, prefill and decode, over a sequence group
    job.py       what a call asks for, and whether these can do it
    options.py   how tokens are drawn, and when the loop ends
    takeover.py  a prompt that Python computed, and djinnd's loop behind it
    later.py     what the model is given at the tokens behind such a prompt
    steps.py     transformers' own loop over these programs, a step at a time, for options that
                 djinnd's loop does not know

What cannot be captured takes recorded operators. `explain()` says which, and why.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from djinn.errors import Error
from djinn.session import deadline_ms

from . import _device, groups, notice, state
from .config import config
from .job import Call, Job, group_for, job_of
from .options import options_of
from .state import DEVICE, NotInDaemon
from .steps import over_steps
from .stopping import Rows, check_ends
from .takeover import Taken, give_back, take_over


def sample(
    original: Any,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    **kwargs: Any,
) -> Any:
    """In place of `GenerationMixin._sample`, which `original` is: same arguments, same result."""
    given = (input_ids, logits_processor, stopping_criteria, generation_config)
    options = {"synced_gpus": synced_gpus, "streamer": streamer}
    call = Call(original, model, *given, options, kwargs)
    asked = _asked.get()
    if asked is not None:
        asked.append(replace(call, kwargs=_of_the_model(model, kwargs)))
        return input_ids
    return lower(call, _sample)


# Where calls go that are made to be looked at.
_asked: ContextVar[list[Call] | None] = ContextVar("djinn_asked", default=None)


def call_of(model: Any, ids: torch.Tensor, **options: Any) -> Call:
    """transformers' loop as `generate()` would begin it; nothing is computed. Raises NotInDaemon
    where it would begin another."""
    calls: list[Call] = []
    token = _asked.set(calls)
    try:
        model.generate(ids, **options)
    finally:
        _asked.reset(token)
    if len(calls) != 1:
        raise NotInDaemon("its generate() is not transformers' loop over tokens")
    return calls[0]


def lower(call: Call, run: Callable[[Call], tuple[Any, int, str]], why_not: str = "") -> Any:
    """What run() gives for the call: a result, the tier that it took, and why not a higher one.
    Where it does not go in djinnd, operators are recorded, and that is told, or refused; why_not
    begins it."""
    call = replace(call, kwargs=_of_the_model(call.model, call.kwargs))
    if state.is_gone(call.model):
        return call.in_python()  # whose first operator says what became of it
    is_recorded = False
    try:
        result, tier, why = run(call)
    except NotInDaemon as reason:
        is_recorded, tier, why = True, 0, f"{why_not}{reason}"
    if is_recorded:  # here, so that an error of the model's does not seem to come of ours
        if not state.is_gone(call.model):
            begin_slowly(call.model, why)
        result = call.in_python()
    state.took(state.known_of(call.model), tier, why)  # not what its last forward took
    return result


def _of_the_model(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments without generate()'s own, which transformers hands through to forwards that
    have no use for them."""
    own = {"tokenizer", "assistant_tokenizer"} - set(
        inspect.signature(type(model).forward).parameters
    )
    return {name: one for name, one in kwargs.items() if name not in own}


def _sample(call: Call) -> tuple[Any, int, str]:
    try:
        job = job_of(call)
    except NotInDaemon as reason:
        why = str(reason)
    else:
        try:
            return _in_daemon(call, job), 2, _why_one_pass(job)
        except NotInDaemon as reason:
            why = str(reason)
        try:
            return over_steps(call, job), 1, why
        except NotInDaemon as reason:
            raise NotInDaemon(f"{why}; nor a step at a time, because {reason}") from reason
    if state.is_fast_only(call.model):  # its prompt would be exact
        raise NotInDaemon(why)
    try:
        return _taken_over(call), 2, f"its prompt goes operator by operator, because {why}"
    except NotInDaemon as reason:
        more = f"; nor from its prompt on, because {reason}" if str(reason) != why else ""
        raise NotInDaemon(why + more) from reason


def _why_one_pass(job: Job) -> str:
    """Of a long prompt of fast numerics; empty where it ran in parts."""
    why = job.programs.one_pass
    return f"its prompt ran in one pass, because {why}" if why else ""


def _taken_over(call: Call) -> Any:
    """The prompt is computed here, and djinnd goes on from there."""
    _check_options(call)
    taken = take_over(call)
    try:
        return _in_daemon(call, taken.job, taken)
    except BaseException:
        taken.undo()  # as if it had not begun
        raise


def _check_options(call: Call) -> None:
    """Before anything is computed: whether djinnd's loop knows them."""
    _check_streamer(call.options["streamer"])
    _check_draws(call)
    options_of(call.config, call.processors, call.criteria, call.ids.shape[1], 1)


def begin_slowly(model: Any, why: str) -> None:
    """Told before it does. Raises an error where it may not."""
    state.refuse_exact(model, "generate() of a ghost", why)
    notice.once(
        f"generate() of a ghost goes operator by operator, which may be slower than without djinn: "
        f"{why.rstrip('.')}. See {notice.GHOSTS}, Generation."
    )


# Streamers that computed on the device while a loop ran in djinnd, and so waited for its end.
_waited: "weakref.WeakSet[type]" = weakref.WeakSet()


def _check_streamer(streamer: Any) -> None:
    if type(streamer) in _waited:
        raise NotInDaemon(f"its streamer, a {type(streamer).__name__}, computes on the device")


def _check_draws(call: Call) -> None:
    if call.config.do_sample and call.ids.device != DEVICE:
        raise NotInDaemon("its ids are on the CPU, so tokens are drawn there, as without djinn")


def _check_history(job: Job, input_ids: torch.Tensor, options: dict[str, Any]) -> None:
    """A penalty for repetition looks at all ids that it is given: djinnd has those that it saw."""
    if not job.past or "repetition_penalty" not in options:
        return
    held = groups.held_of(job.cache)
    seen = None if held is None else held.ids
    if seen is None or job.prompt == job.tokens:
        raise NotInDaemon("djinnd does not know all tokens whose repetition is penalised")
    if not torch.equal(seen, input_ids[:, : job.past].cpu()):
        raise NotInDaemon("its first ids are not those of its cache")


@dataclass
class Drawn:
    offset: int = 0  # the next one that the loop did not use


@contextmanager
def _drawing(options: dict[str, Any], rows: int) -> Iterator[Drawn]:
    """The loop's random numbers are set apart before it begins: a streamer that draws from the
    device's generator meanwhile gets those behind them, and is the last word on what comes next."""
    drawn = Drawn()
    if options["greedy"]:
        yield drawn
        return
    seed, first = _device.random_state()
    reserved = first + rows * options["max_new_tokens"]
    options["seed"], options["random_offset"] = seed, first
    _device.set_random_offset(reserved)
    drawn.offset = first  # nothing, where it fails
    try:
        yield drawn
    finally:
        if _device.random_state() == (seed, reserved):
            _device.set_random_offset(drawn.offset)


def _in_daemon(call: Call, job: Job, taken: Taken | None = None) -> Any:
    streamer = call.options["streamer"]
    _check_streamer(streamer)
    _check_draws(call)
    most = job.total - job.past - job.tokens
    options = options_of(call.config, call.processors, call.criteria, job.prompt, most)
    _check_history(job, call.ids, options)
    check_ends(call.criteria, len(call.ids), job.outlives)
    rows = Rows(call.ids.cpu(), call.criteria, options["pad_token"], streamer)
    sequences = _generate(call.model, job, rows, options, streamer, taken).to(call.ids.device)
    if not call.config.return_dict_in_generate:
        return sequences
    if call.model.config.is_encoder_decoder:
        return GenerateEncoderDecoderOutput(sequences=sequences, past_key_values=job.cache)
    return GenerateDecoderOnlyOutput(sequences=sequences, past_key_values=job.cache)


def _generate(
    model: Any,
    job: Job,
    rows: Rows,
    options: dict[str, Any],
    streamer: Any,
    taken: Taken | None,
) -> torch.Tensor:
    """All ids, on the CPU."""
    held = group_for(model, job)
    beside: list[list[torch.Tensor]] = [[], [], []]
    given = rows.ids[:, -job.tokens :]
    if taken is not None:
        beside = [taken.at_prompt, taken.at_token, taken.at_token]
        options["symbols"] = taken.symbols
        # What the prompt became more of in the cache than it has ids stands before it.
        given = torch.nn.functional.pad(given, (job.tokens - given.shape[1], 0))
    try:
        with _drawing(options, rows=len(rows.ids)) as drawn:
            options["late_from"] = job.programs.late_from
            tokens, drawn.offset, waited = held.group.generate(
                list(zip((one.template for one in job.programs.all), beside, strict=False)),
                given.to(torch.int32).flatten().tolist(),
                job.tokens,
                [0] * len(rows.ids) if job.past else job.padding,
                options,
                rows.append if rows.is_asked else None,
                deadline_ms(config.begin_within, "begin_within"),
                (job.programs.extend.template, []) if job.programs.extend else None,
            )
            if rows.ended and not options["greedy"]:
                drawn.offset = options["random_offset"] + len(tokens[0]) * len(tokens)
    except BaseException as error:
        was_refused = isinstance(error, Error) and error.code == "queue_full"
        if job.past and not was_refused:
            held.crop(job.past)  # as if it had not begun
        raise
    ids = rows.extend(tokens)
    if waited:
        _waited.add(type(streamer))
    if streamer is not None:
        streamer.end()
    if job.outlives:
        length = job.past + job.tokens + len(tokens[0]) - 1  # the last one was not run yet
        if rows.ended:
            held.crop(length)
        held.length = length
        if taken is not None:
            give_back(taken, held)
            return ids
        held.ids = ids[:, :length] if ids.shape[1] == length + 1 else None
        groups.hold(job.cache, held)
    return ids


__all__ = ["begin_slowly", "call_of", "lower", "sample"]
