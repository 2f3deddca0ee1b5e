"""What PyTorch's Python side asks of a device: its name, its module, methods on tensors."""

import types
from typing import Any

from . import _device

NAME = "remote_accelerator"


def register(torch: Any) -> None:
    """Names the PrivateUse1 back end; once in a process."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module(torch))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # Module.to() keeps its parameters' identities, and so tied weights and optimizers: between
    # devices of different kinds it makes new ones otherwise.
    torch.__future__.set_swap_module_params_on_conversion(True)


def _module(torch: Any) -> types.ModuleType:
    """`torch.remote_accelerator`: one device, without streams."""
    module = types.ModuleType(f"torch.{NAME}")

    class Device:
        """Chooses the current device, of which there is one."""

        def __init__(self, index: Any) -> None:
            self.index = index

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    module.device = Device  # type: ignore[attr-defined]
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "_is_in_bad_fork": lambda: False,
        "manual_seed": lambda seed: _device.set_seed(seed),
        "manual_seed_all": lambda seed: _device.set_seed(seed),
        "get_rng_state": lambda index=0: _device.get_rng_state(),
        "set_rng_state": lambda state, index=0: _device.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "synchronize": lambda index=0: _device.flush(),
        "empty_cache": lambda: None,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
