# SPDX-License-Identifier: Apache-2.0
"""trainer.py MODEL: transformers' Trainer, with its defaults."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
words = ["daemon", "kernel", "hacker", "shell", "pipe", "fork", "zombie", "socket"]
rows = [tokenizer(f":{word}: /n./ what a {word} is").input_ids[:24] for word in words]
dataset = [{"input_ids": row, "labels": row} for row in rows]

arguments = TrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1
)
trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(entry["loss"])
print(next(model.parameters()).device.type == arguments.device.type)
trainer.save_model("tuned")
AutoModelForCausalLM.from_pretrained("tuned")
