"""The daemon as a PyTorch device, `remote_accelerator:0`, and ghost models on it.

Importing this makes the device; nothing connects to djinnd before a value is needed.
"""

import torch

from . import backend

backend.register()

device = torch.device("remote_accelerator", 0)

__all__ = ["device"]
