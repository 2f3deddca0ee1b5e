# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's Python side asks of a device: its name, its module, methods on tensors."""

import functools
import mmap
import types
from typing import Any

import torch

from . import _device
from .sizes import size_text

NAME = "remote_accelerator"
PAGES_WORTH = 1 << 20  # bytes; smaller blocks fit the holes that others leave in the heap


def register() -> None:
    """Names the PrivateUse1 back end; once in a process."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch.UntypedStorage.cpu = _cpu(torch.UntypedStorage.cpu)  # type: ignore[method-assign]
    # Before PyTorch's own for such devices (23), whose files would need djinn to be loaded.
    torch.serialization.register_package(15, _tag, lambda *_: None)


def _tag(storage: Any) -> str | None:
    """Where a saved storage goes when it is loaded: a file is as one that the CPU wrote."""
    return "cpu" if storage.device.type == NAME else None


def _cpu(original: Any) -> Any:
    """UntypedStorage.cpu(), which torch.save() calls for each storage in turn. A large one gets
    pages of its own, which go with it: holes of aligned blocks in glibc's heap are often not used
    for the next one (before 2.38), and then a save has as much memory as the whole file."""

    @functools.wraps(original)
    def cpu(storage: Any) -> Any:
        if storage.device.type != NAME or storage.nbytes() < PAGES_WORTH:
            return original(storage)
        pages = mmap.mmap(-1, storage.nbytes())
        return torch.frombuffer(pages, dtype=torch.uint8).untyped_storage().copy_(storage, False)

    return cpu


def _check_index(index: Any) -> None:
    """Refuses a device, a string or a number, as PyTorch takes it, that is not ours."""
    number = index if isinstance(index, int) else torch.device(index).index or 0
    if number > 0:
        raise ValueError(f"djinnd is one device, number 0; there is no number {number}.")


def _memory_functions() -> dict[str, Any]:
    """Those of torch.cuda, for this process: what its tensors, caches and models take in djinnd is
    allocated; what djinnd has granted its session, with the models, is reserved."""

    def of_accelerator(name: str) -> Any:
        function = getattr(torch.accelerator, name)

        def call(device: Any = None) -> Any:
            _check_index(0 if device is None else device)
            return function(0)

        call.__name__, call.__doc__ = name, function.__doc__
        return call

    names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    names += ("memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats")
    return {
        **{name: of_accelerator(name) for name in names},
        "mem_get_info": of_accelerator("get_memory_info"),
        "memory_summary": _memory_summary,
    }


def _memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """What this process has in djinnd, for people."""
    del abbreviated  # it is short
    _check_index(0 if device is None else device)
    torch.accelerator.get_memory_info(0)  # makes the session, or says why there is none
    own = _device.memory()
    lines = (
        ("tensors", max(own["held"] - own["models"], 0), "results, changed weights, caches"),
        ("models", own["models"], "weights, in memory once for all who have them open"),
        ("at most so far", own["most"], "of these two together"),
        ("session", own["granted"], "granted: staging, and room for tensors, kept for later ones"),
        ("free", own["free"], "of djinnd's memory, within your quotas"),
        ("in all", own["total"], "that djinnd may grant"),
    )
    return "\n".join(f"{name:<18}{size_text(size):>10}  {what}" for name, size, what in lines)


def _device_name(device: Any = None) -> str:
    _check_index(0 if device is None else device)
    return "djinnd"


def _device_properties(device: Any = None) -> types.SimpleNamespace:
    """Those of torch.cuda's that there are: `name`, and `total_memory`, what djinnd may grant."""
    return types.SimpleNamespace(
        name=_device_name(device), total_memory=torch.accelerator.get_memory_info(0)[1]
    )


def _module() -> types.ModuleType:
    """`torch.remote_accelerator`: one device, without streams."""
    module = types.ModuleType(f"torch.{NAME}")

    class Device:
        """Chooses the current device, of which there is one."""

        def __init__(self, index: Any) -> None:
            _check_index(index)
            self.index = index

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    module.device = Device  # type: ignore[attr-defined]
    functions = {
        "is_available": _device.is_available,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": _device_name,
        "get_device_properties": _device_properties,
        "current_device": lambda: 0,
        "set_device": _check_index,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,  # else PyTorch takes the device for one not in use
        "manual_seed": lambda seed: _device.set_seed(seed),
        "manual_seed_all": lambda seed: _device.set_seed(seed),
        "get_rng_state": lambda index=0: _device.get_rng_state(),
        "set_rng_state": lambda state, index=0: _device.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "synchronize": lambda index=0: _device.synchronize(),
        "empty_cache": _device.give_back,
        **_memory_functions(),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
