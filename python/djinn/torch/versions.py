# SPDX-License-Identifier: Apache-2.0
"""Which PyTorch djinn.torch is built for: its C++ code fits no other."""

import importlib.metadata

PYTORCH = "2.11.0"
_NEXT = f"Install it for this Python: pip install torch=={PYTORCH}"


def check_pytorch() -> None:
    """Raises ImportError where `import torch` would not give that version."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"djinn.torch needs PyTorch {PYTORCH}, there is none. {_NEXT}") from None
    if found.split("+")[0] != PYTORCH:  # after a +: for which devices it was built
        raise ImportError(f"djinn.torch needs PyTorch {PYTORCH}, found {found}. {_NEXT}")
