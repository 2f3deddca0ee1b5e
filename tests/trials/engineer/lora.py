# SPDX-License-Identifier: Apache-2.0
"""lora.py MODEL: an adapter is trained, saved, loaded again, and merged."""

import sys

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), config)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
batch = tokenizer(
    [":lore: /n./ what is said", ":lora: /n./ a radio"], padding=True, return_tensors="pt"
)

model.train()
for _ in range(15):
    inputs = batch.to(model.device)
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.7f}")
model.save_pretrained("adapter")

base = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tuned = peft.PeftModel.from_pretrained(base, "adapter")
prompt = tokenizer(":lo", return_tensors="pt").to(tuned.device)
print(tokenizer.decode(tuned.generate(**prompt, max_new_tokens=24)[0]))
merged = tuned.merge_and_unload()
print(tokenizer.decode(merged.generate(**prompt, max_new_tokens=24)[0]))
