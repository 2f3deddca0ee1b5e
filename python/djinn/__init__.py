# SPDX-License-Identifier: Apache-2.0
"""djinn: models whose weights are in djinnd, and cost this process no memory.

With transformers, whose models become ghosts (/usr/share/doc/python3-djinn/GHOSTS.md, in a clone
docs/GHOSTS.md):

>>> import djinn
>>> djinn.enable()
>>> from transformers import AutoModelForCausalLM
>>> model = AutoModelForCausalLM.from_pretrained(path)

enable()           from here on from_pretrained gives ghosts
disable()          transformers is as it was; ghosts stay what they are
export(model)      writes what C, C++ and djinnctl need to run it without Python
explain(model)     how its last call went, and why not faster
config             what can be chosen: fallback, keep_alive and others
device()           djinnd as a torch.device
get_profiler()     what the device has counted: operators, runs, bytes, times
set_debug_level()  lines about each operator or run, on stderr
capture()          a block whose new tensors are djinnd's, where they name no device

help(djinn.enable), and so on, says more. These import PyTorch when they are used, and so are not in
the list of functions below.

On numpy arrays, without PyTorch:

>>> with djinn.connect() as session:
...     encoder = djinn.Encoder(session, "all-MiniLM-L6-v2")
...     embeddings = encoder.embed([[101, 7592, 102]])
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _client
from .arrays import bfloat16_to_float32, float32_to_bfloat16
from .errors import (
    Error,
    HandleError,
    IntegrityError,
    InternalError,
    LimitError,
    LostError,
    PerformanceWarning,
    RequestError,
    ResourceError,
    unknown,
)
from .models import Encoder, Generated, Generator, Token
from .plan import Alias, Destination, LoadPlan, Piece, Slice
from .program import Program, Ref, SequenceGroup
from .session import Model, Session, connect

if TYPE_CHECKING:
    from .torch.config import config as config
    from .torch.config import device as device
    from .torch.explain import explain as explain
    from .torch.export import export as export
    from .torch.huggingface import disable as disable
    from .torch.huggingface import enable as enable
    from .torch.profiler import capture as capture
    from .torch.profiler import get_profiler as get_profiler
    from .torch.profiler import set_debug_level as set_debug_level

__version__ = _client.VERSION

# Names that need PyTorch, which is imported when one of them is used.
_OF_TORCH = {
    "capture": "profiler",
    "config": "config",
    "device": "config",
    "disable": "huggingface",
    "enable": "huggingface",
    "explain": "explain",
    "export": "export",
    "get_profiler": "profiler",
    "set_debug_level": "profiler",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(unknown(f"module 'djinn' has no attribute {name!r}", name, __dir__()))
    return getattr(importlib.import_module(f"djinn.torch.{_OF_TORCH[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_OF_TORCH, "__doc__", "__version__"])


__all__ = [
    "Alias",
    "Destination",
    "Encoder",
    "Error",
    "Generated",
    "Generator",
    "HandleError",
    "IntegrityError",
    "InternalError",
    "LimitError",
    "LoadPlan",
    "LostError",
    "Model",
    "PerformanceWarning",
    "Piece",
    "Program",
    "Ref",
    "RequestError",
    "ResourceError",
    "SequenceGroup",
    "Session",
    "Slice",
    "Token",
    "bfloat16_to_float32",
    "connect",
    "float32_to_bfloat16",
]
