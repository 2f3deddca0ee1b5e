# SPDX-License-Identifier: Apache-2.0
"""All patches of foreign code: what makes the unchanged `from_pretrained` of transformers give
ghosts. docs/GHOSTS.md lists them with their reasons.

    enable()   patches transformers, of a version that this was tested with
    disable()  puts every original back

Patched are attributes of `transformers.modeling_utils`, which do nothing unless a ghost is being
loaded in this context, of what runs a model, for models on the device alone, and of configurations:

    PreTrainedModel.from_pretrained           one Load around the outermost call
    PreTrainedModel._load_pretrained_model    sources in place of a state dict, on our device
    PreTrainedModel._finalize_model_loading   what no file has is computed here, and uploaded
    get_hf_quantizer                          refuses what is quantised
    _get_resolved_checkpoint_files            looks at the files before a model is built for them
    PreTrainedConfig.from_dict                refuses what counts far more parts than any model has
    pipelines.base.Pipeline.__init__          leaves a ghost where it is
    PreTrainedModel.to                        says where a ghost is if there is no GPU
    PreTrainedModel.__call__                  a call like one before is replayed as a program
    GenerationMixin.generate                  what is told of a model is of its last call
    GenerationMixin._sample                   the loop over tokens runs in djinnd where it can
    GenerationMixin._beam_search              each of its forwards is a step in djinnd
    GenerationMixin._assisted_decoding        says that it runs in Python
    GenerationMixin._prepare_cache_for_generation, DynamicCache.__init__
                                              a cache that a ghost makes grows in place
    GenerationMixin._optimize_model_for_decode
                                              experts are computed as on the CPU
    sdpa_attention.use_gqa_in_sdpa            heads that share keys are not repeated
    torch.UntypedStorage.share_memory_, _share_fd_cpu_, _share_filename_cpu_
                                              refused for the device's, which have no memory here
    torch.compile, torch.nn.Module.compile, torch._TorchCompileInductorWrapper.__call__
                                              leave what is on the device as it is
    _MapDatasetFetcher.fetch, _IterableDatasetFetcher.fetch
                                              refuse the device's tensors in a worker's batch
    torch._tensor_str._str                    shows that a tensor is gone, and does not raise
    PreTrainedModel.train, requires_grad_, Optimizer.add_param_group
                                              say that a ghost is trained (gradients.py)
    torch.autograd.backward, grad             say what to do where there is no gradient

and what training.py lists of Trainer and accelerate.

A hook of torch's counts the parameters that are built while a ghost is loaded. A filter of warnings
keeps back transformers' own about ids on the CPU, which is not so of a ghost.
"""

import functools
import importlib
import inspect
import operator
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import _pytree as pytree
from torch.utils.data._utils import fetch
from torch.utils.hooks import RemovableHandle

from djinn.errors import LostError, RequestError

from . import (
    _device,
    beams,
    cache,
    compiling,
    config,
    generation,
    ghosts,
    gradients,
    interlock,
    replay,
    state,
    steps,
    training,
)
from .ghosts import DEVICE
from .notice import GHOSTS

TESTED = frozenset({"5.17.0"})
UNWRITTEN = 0  # _device.storage_home(): nobody has written it
PLACED_BY_US = {"auto", "balanced", "balanced_low_0", "sequential"}
# A configuration, and a model before it has weights, make lists of as many items as config.json
# counts of something (layers, heads, labels), by name or in a list: nothing can stop that half way.
# A million takes a second, and is more than any model has. A list of lists is a count of layers
# (gpt_neo's attention_types), of token ids or of an image's sides: a million is none of them.
COUNT_MAX = 1 << 20
COUNTS = re.compile(
    r"(^|_)(n|num)_(?!params|parameters|tokens|samples|positions|ctx)|"
    r"(^|_)(layer|depth|block|stage|group|expert|head|repeat|level|label|codebook|ngram)s?$|"
    r"(^|_)num(ber)?$"
)
# -1 layers would be none, and the model would answer all the same.
LAYERS = re.compile(r"^(num_|n_|encoder_|decoder_)(hidden_|encoder_|decoder_)?layers?$")
DISTRIBUTED = ("tp_plan", "tp_size", "distributed_config", "device_mesh")

# The warning of transformers where ids are on another device than the model.
IDS_ELSEWHERE = rf"(?s)You are calling \.generate\(\).* the model is on {DEVICE.type}\."

_current: ContextVar[ghosts.Load | None] = ContextVar("djinn_load", default=None)
_turn = threading.RLock()  # one outermost load at a time: what it records is held back


def refused(what: str, why: str, way_out: str) -> RequestError:
    return RequestError(102, "unsupported", f"{ghosts.printable(what)} is refused: {why} {way_out}")


# --- enabling -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patch:
    owner: Any
    name: str
    original: Any
    ours: Any
    inherited: bool  # the owner had no such attribute of its own

    def apply(self) -> None:
        setattr(self.owner, self.name, self.ours)

    def restore(self) -> None:
        """Only what is still ours: who patched over it keeps theirs, and ours stays inert."""
        if self.owner.__dict__.get(self.name) is not self.ours:
            return
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


_patches: list[Patch] = []
_hooks: list[RemovableHandle | training.Patcher] = []


def is_enabled() -> bool:
    return bool(_patches)


def enable() -> None:
    """Makes `from_pretrained` give ghosts. Calling it again changes nothing."""
    with _turn:
        if _patches:
            return
        check_version(importlib.import_module("transformers").__version__)
        utils = importlib.import_module("transformers.modeling_utils")
        model = utils.PreTrainedModel
        configuration = importlib.import_module("transformers.configuration_utils").PreTrainedConfig
        pipeline = importlib.import_module("transformers.pipelines.base").Pipeline
        mixin = importlib.import_module("transformers.generation.utils").GenerationMixin
        dynamic_cache = importlib.import_module("transformers.cache_utils").DynamicCache
        attention = importlib.import_module("transformers.integrations.sdpa_attention")
        _take_argument(model)
        state.forget_calls()
        made = []
        for owner, name, wrap in (
            (model, "from_pretrained", _wrap_from_pretrained),
            (model, "_load_pretrained_model", _wrap_load),
            (model, "_finalize_model_loading", _wrap_finalize),
            (utils, "get_hf_quantizer", _wrap_quantizer),
            (utils, "_get_resolved_checkpoint_files", _wrap_files),
            (configuration, "from_dict", _wrap_from_dict),
            (pipeline, "__init__", _wrap_pipeline),
            (mixin, "generate", _wrap_generate),
            (mixin, "_sample", _wrap_sample),
            (mixin, "_beam_search", _wrap_beam_search),
            (mixin, "_assisted_decoding", _wrap_assisted),
            (mixin, "_prepare_cache_for_generation", _wrap_prepare_cache),
            (mixin, "_optimize_model_for_decode", _wrap_optimize_for_decode),
            (dynamic_cache, "__init__", _wrap_dynamic_cache),
            (attention, "use_gqa_in_sdpa", _wrap_use_gqa),
            (torch.UntypedStorage, "share_memory_", _wrap_share_memory),
            (torch.UntypedStorage, "_share_fd_cpu_", _wrap_share_memory),
            (torch.UntypedStorage, "_share_filename_cpu_", _wrap_share_memory),
            (fetch._MapDatasetFetcher, "fetch", _wrap_fetch),
            (fetch._IterableDatasetFetcher, "fetch", _wrap_fetch),
            (torch._tensor_str, "_str", _wrap_str),
            (model, "to", _wrap_to),
            (model, "cuda", _wrap_cuda),
            (torch, "compile", compiling.wrap_compile),
            (torch.nn.Module, "compile", compiling.wrap_module_compile),
            (torch._TorchCompileInductorWrapper, "__call__", compiling.wrap_inductor),
            (model, "__call__", _wrap_call),
            (model, "train", gradients.wrap_train),
            (model, "requires_grad_", gradients.wrap_requires_grad),
            (torch.optim.Optimizer, "add_param_group", gradients.wrap_add_param_group),
            (torch.autograd, "backward", gradients.wrap_differentiate),
            (torch.autograd, "grad", gradients.wrap_differentiate),
        ):
            made.append(_made(owner, name, wrap))
        for patch in made:
            _apply(patch)
        _hooks.append(training.Patcher(lambda *place: _apply(_made(*place))))
        _hooks.append(register_module_parameter_registration_hook(_count_parameter))
        warnings.filterwarnings("ignore", IDS_ELSEWHERE, UserWarning)


def _made(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    original = owner.__dict__.get(name, getattr(owner, name))
    return Patch(owner, name, original, wrap(original), name not in owner.__dict__)


def _apply(patch: Patch) -> None:
    _patches.append(patch)
    patch.apply()


def disable() -> None:
    """Puts transformers back as it was, but that `from_pretrained` takes djinn=False. Ghosts that
    exist stay what they are."""
    with _turn:
        for patch in reversed(_patches):
            patch.restore()
        _patches.clear()
        while _hooks:
            _hooks.pop().remove()
        warnings.filters[:] = [one for one in warnings.filters if not _is_ours(one)]


def _is_ours(rule: Any) -> bool:
    return getattr(rule[1], "pattern", None) == IDS_ELSEWHERE


def check_version(version: str) -> None:
    if version in TESTED or config.config.allow_untested_transformers:
        return
    raise refused(
        f"transformers {version}",
        f"djinn patches how it loads models, and was tested with {', '.join(sorted(TESTED))} only.",
        "Install that version, or set djinn.config.allow_untested_transformers = True.",
    )


# --- from_pretrained ------------------------------------------------------------------------------


def _take_argument(model: Any) -> None:
    """Holds from the first enable() on, for good: whoever wrote djinn=False means it whether djinn
    is enabled or not."""
    original = model.__dict__["from_pretrained"]
    call = original.__func__
    if hasattr(call, "takes_djinn"):
        return

    @functools.wraps(call)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("djinn", False):
            raise ValueError("djinn=True asks for a ghost: call djinn.enable() first.")
        return call(cls, *args, **kwargs)

    from_pretrained.takes_djinn = True  # type: ignore[attr-defined]
    model.from_pretrained = classmethod(from_pretrained)


def _wrap_from_pretrained(original: Any) -> Any:
    call = original.__func__

    @functools.wraps(call)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("djinn", True)
        if not (wanted and is_enabled() and is_for_daemon(kwargs.get("device_map"))):
            with _hint_at_device(kwargs.get("device_map")):
                return _local(lambda: call(cls, *args, **kwargs))
        if kwargs.get("device_map") is not None:
            kwargs["device_map"] = None  # transformers would want accelerate for it
        refuse_options(kwargs)
        if _current.get() is not None:
            return _remember(call(cls, *args, **kwargs))
        return _ghost_or_local(lambda: call(cls, *args, **kwargs))

    return classmethod(from_pretrained)


NO_GPU = (
    f'djinn: this machine has no GPU that PyTorch can use. A ghost is on "{DEVICE}", its '
    f'model.device; device_map="auto", or none, means djinnd. See {GHOSTS}.'
)


@contextmanager
def _hint_at_device(place: Any) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        if str(place).startswith("cuda") and not torch.cuda.is_available():
            error.add_note(NO_GPU)
        raise


def _wrap_to(original: Any) -> Any:
    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _hint_at_device(args[0] if args else kwargs.get("device")):
            return original(self, *args, **kwargs)

    return to


def _wrap_cuda(original: Any) -> Any:
    @functools.wraps(original)
    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _hint_at_device("cuda"):
            return original(self, *args, **kwargs)

    return cuda


def _ghost_or_local(call: Callable[[], Any]) -> Any:
    try:
        return _ghost(call)
    except interlock.Unavailable as error:
        if config.config.fallback != "local":
            raise
        interlock.audit(error)
        ghosts.stats.local += 1
        _device.state_local_model()
        return _local(call)


def _local(call: Callable[[], Any]) -> Any:
    with _load_in_context(None):
        result = call()
    if is_enabled():
        training.stays_here(result[0] if isinstance(result, tuple) else result)
    return result


def _ghost(call: Callable[[], Any]) -> Any:
    load = ghosts.Load()
    with _turn, torch.inference_mode(False):  # weights have versions, whoever loads them
        try:
            with _load_in_context(load), _factories_here():
                result = _remember(call())
            load.finish()
        finally:
            load.end()
    return result


@contextmanager
def _load_in_context(load: ghosts.Load | None) -> Iterator[None]:
    token = _current.set(load)
    try:
        yield
    finally:
        _current.reset(token)


def _remember(result: Any) -> Any:
    """`result` is a model, or one with information on its loading."""
    load = _current.get()
    assert load is not None
    load.models.append(result[0] if isinstance(result, tuple) else result)
    return result


def _device_of_factories() -> torch.device:
    return torch.tensor([]).device


def _factories_here() -> Any:
    """Buffers are computed on the CPU, also where new tensors are made on our device."""
    return torch.device("cpu") if _device_of_factories().type == DEVICE.type else nullcontext()


# --- generating -----------------------------------------------------------------------------------


def _wrap_generate(original: Any) -> Any:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ghost(self):
            return original(self, *args, **kwargs)
        with state.generation(self):
            return original(self, *args, **kwargs)

    return generate


def _wrap_beam_search(original: Any) -> Any:
    @functools.wraps(original)
    def _beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ghost(self):
            return original(self, *args, **kwargs)
        return beams.search(original, self, *args, **kwargs)

    return _beam_search


def _wrap_assisted(original: Any) -> Any:
    @functools.wraps(original)
    def _assisted_decoding(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ghost(self):
            return original(self, *args, **kwargs)
        why = "assisted decoding is transformers' loop in Python"
        generation.begin_slowly(self, why)
        result = original(self, *args, **kwargs)
        state.took(state.known_of(self), 0, why)
        return result

    return _assisted_decoding


def _wrap_sample(original: Any) -> Any:
    @functools.wraps(original)
    def _sample(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if input_ids.device != DEVICE and not is_ghost(self):
            return original(self, input_ids, *args, **kwargs)
        return generation.sample(original, self, input_ids, *args, **kwargs)

    return _sample


def _wrap_optimize_for_decode(original: Any) -> Any:
    @functools.wraps(original)
    def _optimize_model_for_decode(self: Any) -> Any:
        # Off the CPU transformers takes other products for a token's experts, of other bits.
        return nullcontext() if is_ghost(self) else original(self)

    return _optimize_model_for_decode


def _wrap_call(original: Any) -> Any:
    def of_ghost(self: Any, args: Any, kwargs: Any) -> Any:
        with cache.made_by_ghost():
            return replay.call(original, self, args, kwargs)

    call_ghost = compiling.left_alone(of_ghost)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if steps.is_step(kwargs.get("past_key_values")):
            return steps.step(kwargs["past_key_values"], kwargs["input_ids"])
        if not is_ghost(self):
            return original(self, *args, **kwargs)
        return call_ghost(self, args, kwargs)

    return __call__


def is_ghost(model: Any) -> bool:
    first = next(model.parameters(), None)
    return first is not None and first.device == DEVICE


# --- caches and attention -------------------------------------------------------------------------


def _wrap_prepare_cache(original: Any) -> Any:
    @functools.wraps(original)
    def _prepare_cache_for_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ghost(self):
            return original(self, *args, **kwargs)
        with cache.made_by_ghost():
            return original(self, *args, **kwargs)

    return _prepare_cache_for_generation


def _wrap_dynamic_cache(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if cache.is_made_by_ghost():
            cache.let_grow(self)

    return __init__


def _wrap_use_gqa(original: Any) -> Any:
    @functools.wraps(original)
    def use_gqa_in_sdpa(mask: Any, key: torch.Tensor, value: torch.Tensor) -> bool:
        if mask is None or key.device != DEVICE or key.shape[-1] != value.shape[-1]:
            return bool(original(mask, key, value))
        # Repeated heads are dense, and PyTorch takes another kernel for those that are not.
        if key.stride(-1) != 1 or value.stride(-1) != 1:
            return bool(original(mask, key, value))
        # With a mask, transformers repeats heads for the sake of kernels that djinnd has not. The
        # bits are the same; those of a gradient may differ.
        return not (torch.is_grad_enabled() and (key.requires_grad or value.requires_grad))

    return use_gqa_in_sdpa


# --- sharing --------------------------------------------------------------------------------------


def _wrap_share_memory(original: Any) -> Any:
    @functools.wraps(original)
    def share(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == DEVICE.type:
            raise refused(
                "Sharing memory of a tensor of djinnd (share_memory_, a queue to another process)",
                "its bytes are in djinnd, and this process has none to share.",
                "Load the model in each process: djinnd keeps one copy of its weights for all. Or "
                "share tensor.cpu().",
            )
        return original(self, *args, **kwargs)

    return share


def _wrap_fetch(original: Any) -> Any:
    """In a worker of a DataLoader an error while it sends its batch would only be printed, and the
    program would wait for that batch."""

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        batch = original(self, index)
        if torch.utils.data.get_worker_info() is not None and _holds_ours(batch):
            raise refused(
                "A batch of a DataLoader's worker that holds a tensor of djinnd",
                "its bytes are in djinnd, and a worker is another process, which has none to send.",
                "Let the dataset give tensors of the CPU, and move each batch where it is used: "
                "batch.to(model.device). Or use num_workers=0.",
            )
        return batch

    return fetch


def _holds_ours(batch: Any) -> bool:
    leaves = pytree.tree_leaves(batch)
    return any(isinstance(one, torch.Tensor) and one.device == DEVICE for one in leaves)


# --- showing --------------------------------------------------------------------------------------


def _wrap_str(original: Any) -> Any:
    """A tensor that has no value shows just that: whoever looks at a model asks for no value."""

    @functools.wraps(original)
    def _str(self: Any, *, tensor_contents: str | None = None) -> str:
        try:
            why = None if tensor_contents is not None else _why_without_value(self)
            if why is None and tensor_contents is None and _is_unwritten(self):
                zeros = torch.zeros((), dtype=self.dtype).expand(self.shape)
                tensor_contents = torch._tensor_str._tensor_str(zeros, len("tensor("))
            if why is None:
                return str(original(self, tensor_contents=tensor_contents))
        except LostError:
            if self.device != DEVICE:
                raise
            why = "without a value: the connection to djinnd is lost, and no djinnd listens"
        except RuntimeError:
            if self.device != DEVICE or not _device.is_forked():
                raise
            why = "in djinnd, of the process that this one was forked from"
        return str(original(self, tensor_contents=f"<{why}>, size={tuple(self.shape)}"))

    return _str


def _is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether it is zeros that take no memory in djinnd, which showing them there would."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device != DEVICE:
        return False
    return _device.storage_home(tensor.detach()) == UNWRITTEN and tensor.numel() > 0


def _why_without_value(tensor: torch.Tensor) -> str | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device != DEVICE:
        return None
    why = _device.why_without_value(tensor.detach())
    if why is None:
        return None
    return f"without a value: {why}" if why else "gone: djinnd's session has ended"


# --- pipelines ------------------------------------------------------------------------------------


def _wrap_pipeline(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        if given.arguments["model"].device == DEVICE:
            given.arguments["device"] = _place_of_pipeline(given.arguments.get("device"))
        original(*given.args, **given.kwargs)

    return __init__


def _place_of_pipeline(asked: Any) -> Any:
    """A ghost's: without a GPU transformers takes none, and each number, for the CPU."""
    if asked is None:
        return DEVICE
    if isinstance(asked, int):
        return asked if asked < 0 else config.device(asked)
    place = torch.device(asked)
    if place.type == "cuda" and not torch.cuda.is_available():
        return config.device(place.index or 0)
    return place


# --- what is for the daemon, and what is refused --------------------------------------------------


def is_for_daemon(device_map: Any) -> bool:
    if device_map is None:
        return _device_of_factories().type in ("cpu", DEVICE.type)
    if isinstance(device_map, dict):
        ours = {is_for_daemon(one) for one in device_map.values()}
        if len(ours) > 1:
            raise refused(
                "A device_map over djinnd and local devices",
                "a ghost lives in djinnd as a whole.",
                'Use device_map="auto" for a ghost, or name local devices only.',
            )
        return ours == {True}
    if isinstance(device_map, str) and device_map in PLACED_BY_US:
        return True
    if isinstance(device_map, int) or str(device_map).partition(":")[0] != DEVICE.type:
        return False
    config.device(torch.device(device_map).index or 0)  # there is one
    return True


def refuse_options(kwargs: dict[str, Any]) -> None:
    if kwargs.get("quantization_config") is not None or kwargs.get("gguf_file") is not None:
        refuse_quantised("quantization_config" if kwargs.get("quantization_config") else "GGUF")
    for name in DISTRIBUTED:
        if kwargs.get(name) is not None:
            raise refused(
                name, "djinnd places a model itself.", "Leave it out, or pass djinn=False."
            )
    if kwargs.get("use_kernels"):
        refuse_attention("use_kernels")
    configured = getattr(kwargs.get("config"), "_attn_implementation", None)
    for wanted in (kwargs.get("attn_implementation"), configured):
        for one in wanted.values() if isinstance(wanted, dict) else [wanted]:
            refuse_kernels(str(one))


def refuse_kernels(attention: str) -> None:
    if "flash" in attention or "flex" in attention or "/" in attention:
        refuse_attention(f'attn_implementation="{attention}"')


def refuse_counts(configuration: dict[str, Any]) -> None:
    """Refuses counts of a config.json, and of those inside of it, that no model has."""
    for name, value in numbers_of(configuration):
        key, _, places = name.rpartition(".")[2].partition("[")
        in_lists = isinstance(value, int) and "][" in places
        if value > COUNT_MAX and (in_lists or COUNTS.search(key)):
            refuse_count(name, value)
        if value < 0 and LAYERS.search(key):
            raise refused(
                f"{name} = {value}",
                "a model cannot have fewer layers than none.",
                "Compare config.json with the checkpoint.",
            )
    for one in parts_of(configuration):
        layers = layers_of(one.get("attention_types"))
        if layers > COUNT_MAX:
            refuse_count("The number of layers in attention_types", layers)


def refuse_count(name: str, value: float) -> None:
    raise refused(
        f"{name} = {value}",
        f"no model has more than {COUNT_MAX}, and transformers would list all.",
        "Compare config.json with the checkpoint.",
    )


def parts_of(configuration: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The configuration, and those inside of it."""
    rest: list[Any] = [configuration]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += one.values()
            yield one


def layers_of(attention_types: Any) -> int:
    """How many layers GPT-Neo lists for [[["global", "local"], 6], ...]: the kinds of each item, as
    often as it says. What is of another form transformers refuses, when it comes to it."""
    layers = 0
    with suppress(IndexError, KeyError, TypeError):
        for item in attention_types:
            layers += len(item[0]) * max(operator.index(item[1]), 0)
    return layers


def numbers_of(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a configuration, with where they are: "text_config.depths[0]"."""
    rest = [(name, value)]
    while rest:
        name, value = rest.pop()
        if isinstance(value, dict):
            rest += [(f"{name}.{key}" if name else str(key), one) for key, one in value.items()]
        elif isinstance(value, (list, tuple)):
            rest += [(f"{name}[{number}]", one) for number, one in enumerate(value)]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, value


def refuse_attention(what: str) -> None:
    raise refused(
        what,
        "its kernels are code that would have to run in djinnd, which runs PyTorch's own only.",
        'Leave it out, or use attn_implementation="sdpa" or "eager".',
    )


def refuse_quantised(what: str) -> None:
    raise refused(
        f"A quantised model ({what})",
        "its weights need kernels of a library that djinnd does not run.",
        "Use a checkpoint in float32, bfloat16 or float16, or pass djinn=False to load it here.",
    )


def refuse_files(paths: Sequence[str]) -> None:
    if not paths:
        raise refused(
            "A checkpoint without files",
            "all of its model's weights would be drawn anew.",
            "Look at the weight_map of its model.safetensors.index.json.",
        )
    for path in paths:
        if not str(path).endswith(".safetensors"):
            raise refused(
                f"The checkpoint file {os.path.basename(path)}",
                "djinnd reads safetensors only, because loading others runs code of theirs.",
                "Convert it once: from_pretrained(..., djinn=False).save_pretrained(directory), "
                "and load that directory.",
            )


def _wrap_from_dict(original: Any) -> Any:
    call = original.__func__

    @functools.wraps(call)
    def from_dict(cls: Any, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        refuse_counts(config_dict)
        return call(cls, config_dict, **kwargs)

    return classmethod(from_dict)


# --- inside of from_pretrained --------------------------------------------------------------------


def _wrap_quantizer(original: Any) -> Any:
    @functools.wraps(original)
    def get_hf_quantizer(
        model_config: Any, quantization_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _current.get() is not None:
            for one in (model_config, model_config.get_text_config(decoder=True)):
                if getattr(one, "quantization_config", None) is not None:
                    refuse_quantised("quantization_config in its config.json")
        return original(model_config, quantization_config, *args, **kwargs)

    return get_hf_quantizer


def _wrap_load(original: Any) -> Any:
    call = original.__func__

    @functools.wraps(call)
    def _load_pretrained_model(
        model: Any,
        state_dict: dict[str, Any] | None,
        checkpoint_files: list[str] | None,
        load_config: Any,
        expected_keys: list[str] | None = None,
    ) -> Any:
        load = _current.get()
        if load is None:
            return call(model, state_dict, checkpoint_files, load_config, expected_keys)
        refuse_kernels(str(model.config._attn_implementation))
        if state_dict is None:
            if checkpoint_files is not None:
                refuse_files(checkpoint_files)
            refuse_sizes(model, load.elements_max())
        load.begin(weight_bytes(model))
        _set(load_config, device_map={"": DEVICE})
        if state_dict is None:
            state_dict = load.open_files([str(path) for path in checkpoint_files or []])
        with _environment("HF_DEACTIVATE_ASYNC_LOAD", "1"):  # one thread, one order
            return call(model, state_dict, checkpoint_files, load_config, expected_keys)

    return staticmethod(_load_pretrained_model)


def _wrap_files(original: Any) -> Any:
    @functools.wraps(original)
    def _get_resolved_checkpoint_files(*args: Any, **kwargs: Any) -> Any:
        files, metadata = original(*args, **kwargs)
        load = _current.get()
        if load is not None and files is not None:  # None: the caller has a state dict
            refuse_files(files)
            load.expect([str(path) for path in files])
        return files, metadata

    return _get_resolved_checkpoint_files


def _count_parameter(module: Any, name: str, parameter: Any) -> None:
    """Is called by all threads: others build what they like meanwhile."""
    load = _current.get()
    if load is not None and parameter is not None:
        load.count_parameter()


def refuse_sizes(model: Any, elements_max: int) -> None:
    """Refuses a model on the meta device of more elements: what no file has would be computed in
    this process."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    elements = sum(one.numel() for one in tensors.values())
    if elements <= elements_max:
        return
    name, largest = max(tensors.items(), key=lambda item: item[1].numel())
    numbers = sorted(numbers_of(model.config.to_dict()), key=lambda item: -item[1])
    raise RequestError(
        *(101, "malformed"),
        f"config.json asks for far larger weights than the checkpoint holds: {elements} elements; "
        f"{name} would have the sizes {list(largest.shape)}. Compare its numbers with the "
        "checkpoint's, the largest first: "
        f"{', '.join(f'{ghosts.printable(key)} = {value}' for key, value in numbers[:3])}.",
    )


def weight_bytes(model: Any) -> int:
    """What the model's parameters and persistent buffers take, in the dtypes that transformers
    chose for them; it is still on the meta device."""
    tied = getattr(model, "all_tied_weights_keys", {})
    return interlock.weight_bytes(
        (one.element_size(), tuple(one.shape))
        for name, one in model.state_dict().items()
        if name not in tied
    )


def _wrap_finalize(original: Any) -> Any:
    call = original.__func__

    @functools.wraps(call)
    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        load = _current.get()
        if load is None:
            return call(model, load_config, loading_info)
        if will_be_refused(load_config, loading_info):
            leave_empty(model)
            return call(model, load_config, loading_info)
        for target, source in list(model.all_tied_weights_keys.items()):
            # transformers would compare their values, which are nowhere yet.
            if not {target, source} & set(loading_info.missing_keys):
                del model.all_tied_weights_keys[target]
                load.tie_later(model, target, source)
        _set(load_config, device_map={"": torch.device("cpu")})
        try:
            return call(model, load_config, loading_info)
        finally:
            _set(load_config, device_map={"": DEVICE})
            upload_the_rest(model)

    return staticmethod(_finalize_model_loading)


def will_be_refused(load_config: Any, info: Any) -> bool:
    """Whether transformers' report, the last that it does of a model, will raise an error."""
    mismatched = info.mismatched_keys and not load_config.ignore_mismatched_sizes
    return bool(mismatched or info.conversion_errors or info.error_msgs)


def leave_empty(model: Any) -> None:
    """Has transformers leave on the meta device what it would draw before it reports: it may have
    sizes that config.json alone says."""
    model._move_missing_keys_from_meta_to_device = model._initialize_missing_keys = _do_nothing


def _do_nothing(*_: Any) -> None:
    pass


def upload_the_rest(model: Any) -> None:
    """Moves what was computed here: buffers that no file has, and heads that are new."""
    moved: dict[int, torch.Tensor] = {}

    def to_device(one: torch.Tensor) -> torch.Tensor:
        if id(one) not in moved:
            there: Any = one.detach().to(DEVICE)
            if isinstance(one, torch.nn.Parameter):
                there = torch.nn.Parameter(there, requires_grad=one.requires_grad)
            there._is_hf_initialized = True
            moved[id(one)] = there
        return moved[id(one)]

    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, one in group.items():
                if one is not None and one.device.type == "cpu":
                    group[name] = to_device(one)


def _set(load_config: Any, **values: Any) -> None:
    """Sets fields of transformers' frozen LoadStateDictConfig, after its own checks."""
    for name, value in values.items():
        object.__setattr__(load_config, name, value)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
