# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer and accelerate train on the device.

Both know their devices by name, and took the CPU for want of another. While djinn is enabled the
default device of both is djinnd's, as a GPU would be; what they were told (`use_cpu`, `cpu=True`,
a device in the environment) stands. Neither carries a ghost here, nor to djinnd a model that its
program loaded into this process: both are said.

Their checkpoints are as on the CPU, and the state of the device's generator lies beside the other
generators' in a file of its own, so that a run that is resumed draws what it would have drawn.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from djinn.errors import RequestError

from . import _device
from .state import DEVICE

RNG_STATE = "djinn_rng_state.pth"
Add = Callable[[Any, str, Callable[[Any], Any]], None]  # patches an attribute by what wraps it

_log = logging.getLogger("djinn")
_stay_here: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()


# --- patching -------------------------------------------------------------------------------------


def _patch_state(module: Any, add: Add) -> None:
    add(module.PartialState, "default_device", _wrap_default_device)


def _patch_accelerator(module: Any, add: Add) -> None:
    add(module, "save_accelerator_state", _wrap_save_state)
    add(module, "load_accelerator_state", _wrap_load_state)
    add(module.Accelerator, "prepare_model", _wrap_prepare_model)


def _patch_arguments(module: Any, add: Add) -> None:
    add(module, "is_torch_bf16_gpu_available", _wrap_bf16)
    add(module.TrainingArguments, "_setup_devices", _wrap_setup_devices)


def _patch_trainer(module: Any, add: Add) -> None:
    add(module.Trainer, "_move_model_to_device", _wrap_move_model)
    add(module.Trainer, "_save_rng_state", _wrap_save_rng_state)
    add(module.Trainer, "_load_rng_state", _wrap_load_rng_state)


PATCHED: dict[str, Callable[[Any, Add], None]] = {
    "accelerate.state": _patch_state,
    "accelerate.accelerator": _patch_accelerator,
    "transformers.training_args": _patch_arguments,
    "transformers.trainer": _patch_trainer,
}


class Patcher(importlib.abc.MetaPathFinder):
    """Patches modules that are there, and the others when they are imported: Trainer, with all that
    it may use, takes long to import, and most programs do without."""

    def __init__(self, add: Add) -> None:
        self._add = add
        for name, patch in PATCHED.items():
            if name in sys.modules:
                patch(sys.modules[name], add)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                if self in sys.meta_path:
                    PATCHED[name](module, self._add)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# --- devices --------------------------------------------------------------------------------------


def _wrap_default_device(original: Any) -> Any:
    def default_device(self: Any) -> torch.device:
        found = original.fget(self)
        return DEVICE if found.type == "cpu" else found

    return property(default_device, doc=original.__doc__)


def _wrap_setup_devices(original: Any) -> Any:
    """A cached property, which is computed with the first access."""

    def _setup_devices(self: Any) -> torch.device:
        found = self.__dict__.get("_setup_devices")
        if found is None:
            found = original.func(self)
            state = getattr(self, "distributed_state", None)
            if found.type == "cpu" and state is not None and state.device == DEVICE:
                found = DEVICE
            self.__dict__["_setup_devices"] = found
        return found

    return property(_setup_devices, doc=original.__doc__)


def _wrap_bf16(original: Any) -> Any:
    @functools.wraps(original)
    def is_torch_bf16_gpu_available() -> bool:
        return True

    return is_torch_bf16_gpu_available


def stays_here(model: torch.nn.Module) -> None:
    """It was loaded into this process although there is djinnd."""
    _stay_here.add(model)


def refuse_to_move(model: torch.nn.Module, device: torch.device, who: str, on_cpu: str) -> None:
    first = next(model.parameters(), None)
    is_there = first is not None and first.device == DEVICE
    if is_there and device.type == "cpu":
        raise RequestError(
            *(102, "unsupported"),
            f"{who} would carry this model out of djinnd into this process, because it was made to "
            f"use the CPU ({on_cpu}), or before djinn.enable(). Make it anew without that, or move "
            'the model first: model.to("cpu").',
        )
    if device.type == DEVICE.type and not is_there and model in _stay_here:
        raise RequestError(
            *(102, "unsupported"),
            f"{who} would carry this model, which was loaded into this process, to djinnd. Train "
            f"it here with {on_cpu}, or in djinnd: load it without djinn=False, or use "
            "model.to(djinn.device()).",
        )


def _wrap_move_model(original: Any) -> Any:
    @functools.wraps(original)
    def _move_model_to_device(self: Any, model: torch.nn.Module, device: torch.device) -> None:
        refuse_to_move(model, device, "Trainer", "TrainingArguments(use_cpu=True)")
        original(self, model, device)

    return _move_model_to_device


def _wrap_prepare_model(original: Any) -> Any:
    @functools.wraps(original)
    def prepare_model(self: Any, model: Any, device_placement: Any = None, **kwargs: Any) -> Any:
        if self.device_placement if device_placement is None else device_placement:
            refuse_to_move(model, self.device, "Accelerator", "Accelerator(cpu=True)")
        return original(self, model, device_placement, **kwargs)

    return prepare_model


# --- checkpoints ----------------------------------------------------------------------------------


def _save_generator(directory: Any) -> None:
    torch.save(_device.get_rng_state(), os.path.join(directory, RNG_STATE))


def _load_generator(directory: Any) -> None:
    path = os.path.join(directory, RNG_STATE)
    if os.path.exists(path):
        _device.set_rng_state(torch.load(path, weights_only=True))
    else:
        _log.warning(
            "%s is not in the checkpoint, which was not written by a training in djinnd: dropout "
            "draws other numbers than it would have drawn.",
            RNG_STATE,
        )


def _wrap_save_rng_state(original: Any) -> Any:
    @functools.wraps(original)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        original(self, output_dir)
        if self.args.device == DEVICE:
            _save_generator(output_dir)

    return _save_rng_state


def _wrap_load_rng_state(original: Any) -> Any:
    @functools.wraps(original)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        original(self, checkpoint)
        if checkpoint is not None and self.args.device == DEVICE:
            _load_generator(checkpoint)

    return _load_rng_state


def _wrap_save_state(original: Any) -> Any:
    @functools.wraps(original)
    def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
        saved = original(output_dir, *args, **kwargs)
        if _accelerates_there():
            _save_generator(output_dir)
        return saved

    return save_accelerator_state


def _wrap_load_state(original: Any) -> Any:
    @functools.wraps(original)
    def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(input_dir, *args, **kwargs)
        if _accelerates_there():
            _load_generator(input_dir)
        return loaded

    return load_accelerator_state


def _accelerates_there() -> bool:
    return importlib.import_module("accelerate.state").PartialState().device == DEVICE


__all__ = ["Patcher", "stays_here"]
