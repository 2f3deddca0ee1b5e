# SPDX-License-Identifier: Apache-2.0
"""tasks.py MODEL: one checkpoint for four tasks, which is in memory once."""

import subprocess
import sys

import djinn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

djinn.enable()
tasks = (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
)
models = [task.from_pretrained(sys.argv[1]) for task in tasks]
print(subprocess.run(["djinnctl", "ps"], capture_output=True, text=True, check=True).stdout)
