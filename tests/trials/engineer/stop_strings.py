# SPDX-License-Identifier: Apache-2.0
"""stop_strings.py MODEL: up to the end of the first sentence."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer(":daemon: /", return_tensors="pt").to(model.device)
output = model.generate(**inputs, stop_strings=["."], tokenizer=tokenizer, max_new_tokens=200)
print(tokenizer.decode(output[0]))
