# SPDX-License-Identifier: Apache-2.0
"""One of two processes with ghosts of one model. It says what it has done, then waits for a line.

neighbour.py SMALL LARGE    directories: a model to warm up with, and the one that is shared
"""

import gc
import hashlib
import sys
from pathlib import Path

import djinn
import torch
import transformers


def pss_bytes() -> int:
    """Of this process; a page that two processes map counts half in each."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024


def meet() -> None:
    """Waits until the other one is there too."""
    assert sys.stdin.readline(), "the test has ended"


def use(directory: str) -> tuple[transformers.PreTrainedModel, str]:
    """A ghost, and a digest of what it computes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.tensor([[5, 9, 17, 3]]).to(djinn.device(0))
    row = model(ids).logits[0, -1].cpu()
    tokens = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    seen = row.numpy().tobytes() + tokens.cpu().numpy().tobytes()
    return model, hashlib.sha256(seen).hexdigest()


def main(small: str, large: str) -> None:
    djinn.enable()
    warm = use(small)
    print("warm", flush=True)
    meet()
    print(pss_bytes(), flush=True)
    meet()
    shared, digest = use(large)
    print(digest, flush=True)
    meet()
    print(pss_bytes(), flush=True)
    meet()
    del warm, shared


if __name__ == "__main__":
    main(*sys.argv[1:3])
