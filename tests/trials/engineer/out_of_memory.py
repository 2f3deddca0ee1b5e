# SPDX-License-Identifier: Apache-2.0
"""out_of_memory.py: a product that is larger than what djinnd may grant."""

import djinn
import torch

x = torch.ones(4096, 64, device=djinn.device())
print(x.sum().item())
y = x @ x.T
z = torch.stack([y] * 64)  # 4 GiB
print(z.sum().item())
