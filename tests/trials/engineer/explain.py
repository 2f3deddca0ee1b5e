# SPDX-License-Identifier: Apache-2.0
"""explain.py MODEL: what djinn says of calls."""

import sys

import djinn
from transformers import AutoModelForCausalLM, AutoTokenizer

djinn.enable()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer("The kernel ", return_tensors="pt").to(model.device)
model.generate(**inputs, max_new_tokens=4)
print("1:", djinn.explain(model))
try:
    model.generate(**inputs, max_new_tokens=4, num_return_sequences=3)
except ValueError as error:
    print("2:", error)
print("3:", djinn.explain(model))
try:
    djinn.explain(3)
except TypeError as error:
    print("4:", error)
