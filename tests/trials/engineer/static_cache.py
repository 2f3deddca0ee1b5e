# SPDX-License-Identifier: Apache-2.0
"""static_cache.py MODEL: with the cache that transformers' page on speed advises."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer("The kernel ", return_tensors="pt").to(model.device)
output = model.generate(**inputs, cache_implementation="static", max_new_tokens=24)
print(tokenizer.decode(output[0]))
