# SPDX-License-Identifier: Apache-2.0
"""beams.py MODEL: the best of four beams."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer(":daemon: /", return_tensors="pt").to(model.device)
output = model.generate(**inputs, num_beams=4, max_new_tokens=40)
print(tokenizer.decode(output[0]))
