# SPDX-License-Identifier: Apache-2.0
"""cuda.py MODEL: a script that was written for a GPU."""

import sys

from transformers import AutoModel

model = AutoModel.from_pretrained(sys.argv[1]).to("cuda")
print(model.device)
