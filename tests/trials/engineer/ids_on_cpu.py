# SPDX-License-Identifier: Apache-2.0
"""ids_on_cpu.py MODEL: a `.to(model.device)` was forgotten."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer(["The kernel ", "A daemon is "], padding=True, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=40)
for row in tokenizer.batch_decode(output):
    print(row)
