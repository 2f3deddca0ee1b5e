# SPDX-License-Identifier: Apache-2.0
"""embeddings.py MODEL: which sentences mean the same?"""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

QUESTIONS = ["Borrowing money is getting more expensive.", "The service idles until it is called."]
ANSWERS = [
    "The bank raised its interest rates.",
    "We fished from the bank of the river.",
    "A daemon waits for work in the background.",
    "A demon tempted him with gold, which is what this much longer sentence comes back to.",
]

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModel.from_pretrained(sys.argv[1])


def embed(sentences: list[str]) -> torch.Tensor:
    inputs = tokenizer(sentences, padding=True, return_tensors="pt").to(model.device)
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs.attention_mask.unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1).cpu()


answers = embed(ANSWERS)
for question in QUESTIONS:
    likeness = embed([question]) @ answers.T
    print(question, "--", ANSWERS[likeness.argmax()], " ".join(f"{x:.4f}" for x in likeness[0]))
