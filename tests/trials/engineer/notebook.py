# SPDX-License-Identifier: Apache-2.0
"""notebook.py MODEL: cells of a notebook, whose models come and go."""

import subprocess
import sys

# %%
import djinn
import torch
from transformers import AutoModel

djinn.enable()
print(dir(djinn))
help(djinn)
print(djinn.config)


# %%
def refs() -> str:
    command = ["djinnctl", "show", sys.argv[1]]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in shown.splitlines() if line.startswith("REFS"))


model = AutoModel.from_pretrained(sys.argv[1])
print(model.embeddings.LayerNorm.weight)
print("refs:", refs())

# %%
del model
torch.remote_accelerator.empty_cache()
print("refs:", refs())
