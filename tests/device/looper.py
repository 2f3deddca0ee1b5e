# SPDX-License-Identifier: Apache-2.0
"""A process whose ghost generates with fast numerics in a loop of Python, each time that a line
comes. It says a digest of its tokens and their logits.

looper.py DIRECTORY SEED    a model; of the prompt
"""

import hashlib
import sys

import djinn
import torch
import transformers
from llama import EVERY, RETURNED, VOCABULARY, Unknown


def main(directory: str, seed: int) -> None:
    djinn.enable()
    djinn.config.numerics = "fast"
    ghost = transformers.AutoModelForCausalLM.from_pretrained(directory)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (1, 6), generator=generator).to(ghost.device)
    for _ in sys.stdin:
        found = ghost.generate(
            ids, **EVERY, **RETURNED, output_logits=True, logits_processor=[Unknown()]
        )
        assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
        logits = torch.cat(found.logits).cpu()
        seen = found.sequences.cpu().numpy().tobytes() + logits.numpy().tobytes()
        print(hashlib.sha256(seen).hexdigest(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
