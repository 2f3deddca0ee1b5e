# SPDX-License-Identifier: Apache-2.0
"""two_tasks.py MODEL: one checkpoint for two tasks, which is in memory once."""

import subprocess
import sys

import djinn
from transformers import AutoModel, AutoModelForSequenceClassification

djinn.enable()
one = AutoModel.from_pretrained(sys.argv[1])
two = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
print(subprocess.run(["djinnctl", "ps"], capture_output=True, text=True, check=True).stdout)
