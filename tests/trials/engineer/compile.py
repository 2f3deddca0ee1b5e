# SPDX-License-Identifier: Apache-2.0
"""compile.py MODEL: torch.compile, of which one expects that it is faster."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
compiled = torch.compile(model)
inputs = tokenizer("The kernel ", return_tensors="pt").to(model.device)
with torch.no_grad():
    for _ in range(2):
        logits = compiled(**inputs).logits.cpu()
        print(torch.equal(logits, model(**inputs).logits.cpu()))
