# SPDX-License-Identifier: Apache-2.0
"""full_finetune.py MODEL: all weights of a classifier, in a loop of one's own."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

GOOD = ["a wonderful film", "moving and well played", "funny from start to end", "I loved it"]
BAD = ["a waste of two hours", "dull, and far too long", "nobody can act here", "I left early"]
texts, labels = (GOOD + BAD) * 3, torch.tensor(([1] * 4 + [0] * 4) * 3)

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], **no_dropout)
inputs = tokenizer(texts, padding=True, return_tensors="pt")
dataset = TensorDataset(inputs.input_ids, inputs.attention_mask, labels)
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

model.train()
for _ in range(2):
    for batch in loader:
        began = time.perf_counter()
        ids, mask, targets = (one.to(model.device) for one in batch)
        loss = model(input_ids=ids, attention_mask=mask, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.7f}")
        print(f"step: {time.perf_counter() - began:.2f} s", file=sys.stderr)
