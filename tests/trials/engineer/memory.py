# SPDX-License-Identifier: Apache-2.0
"""memory.py MODEL: how much is it, asked as one asks torch.cuda."""

import sys

import djinn
import torch
from transformers import AutoModel

djinn.enable()
device = torch.remote_accelerator
free, total = device.mem_get_info()
print(0 < free <= total == device.get_device_properties(0).total_memory)
model = AutoModel.from_pretrained(sys.argv[1])
free, total = device.mem_get_info()
print(torch.accelerator.is_available())
print(abs(model.get_memory_footprint() - device.memory_allocated()) < 2**20)
print(device.memory_allocated() <= device.memory_reserved())
print(device.memory_allocated() <= device.max_memory_allocated())
print(0 < free < total)
print(device.memory_summary())
