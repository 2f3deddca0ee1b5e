# SPDX-License-Identifier: Apache-2.0
"""The daemon as a PyTorch device, `remote_accelerator:0`, and ghost models on it.

Importing this makes the device; nothing connects to djinnd before a value is needed.
"""

from . import versions

versions.check_pytorch()

import torch  # noqa: E402 - only now is it known that there is the right one

from . import backend  # noqa: E402

backend.register()

device = torch.device("remote_accelerator", 0)

__all__ = ["device"]
