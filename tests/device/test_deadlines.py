# SPDX-License-Identifier: Apache-2.0
"""`djinn.config.begin_within`: a generation that would wait too long is refused, and its cache is
as it was."""

import os
from pathlib import Path

import djinn
import forked
import pytest
from private_daemon import running


def test_a_generation_that_would_wait_too_long_is_refused_and_its_cache_stays(
    checkpoint: Path, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    with running("--policy", "fifo") as daemon:
        path = str(Path(__file__).parents[1] / "e2e")
        path = os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])
        told = forked.run(str(script), str(checkpoint), DJINN_HOST=daemon.host, PYTHONPATH=path)
        assert told.stdout.split() == ["queue_full", "12", "alike"], told.stderr
        assert daemon.worker()["refused"] == 1


def test_it_is_a_time_or_none() -> None:
    wrong = ("soon", -1, 0)
    for within in wrong:
        with pytest.raises((TypeError, ValueError), match="begin_within"):
            djinn.config.begin_within = within
    assert djinn.config.begin_within is None


CHILD = """
import sys, threading, time
import numpy as np
import djinn.torch, torch, transformers
from long_runs import matmuls
from private_daemon import wait_until

djinn.enable()
ghost = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
options = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
ids = torch.arange(3, 9)[None]  # which stay here: to read them the lane would be waited for
for turn in range(2):  # its programs are there before anything is refused
    first = ghost.generate(ids, max_new_tokens=7, **options)
    cache = first.past_key_values
    if turn == 0:
        ghost.generate(first.sequences, past_key_values=cache, max_new_tokens=5, **options)

with djinn.connect(name="long") as session, djinn.connect(observer=True) as observer:
    program = session.define(matmuls(200))
    x = np.eye(640, dtype=np.float32)
    for _ in range(2):  # the first has recorded its plan, and the second waited for its memory
        program(x=x)
    thread = threading.Thread(target=program, kwargs={"x": x})
    thread.start()
    wait_until(lambda: any(one["running"] for one in observer.sessions()), "it computes")
    djinn.config.begin_within = 0.05
    try:
        ghost.generate(first.sequences, past_key_values=cache, max_new_tokens=5, **options)
    except djinn.LimitError as error:
        print(error.code)
    djinn.config.begin_within = None
    print(cache.get_seq_length())
    thread.join()
again = ghost.generate(first.sequences, past_key_values=cache, max_new_tokens=5, **options)
whole = ghost.generate(ids, max_new_tokens=12, **options)
print("alike" if torch.equal(again.sequences, whole.sequences) else "different")
"""
