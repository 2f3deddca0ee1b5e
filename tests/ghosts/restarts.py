# SPDX-License-Identifier: Apache-2.0
"""A process whose djinnd is stopped, and started again at the same path, while it has ghosts.

restarts.py SCRATCH    fails where what it finds is not what docs/GHOSTS.md says
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import djinn
import torch
import transformers
import zoo
from private_daemon import BIN, CARRIER, THREADS, Daemon

GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
ids = torch.tensor([[5, 9, 17, 3]])


def error_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except (RuntimeError, djinn.Error) as error:
        return str(error)
    raise AssertionError("no error")


def use(model: Any) -> list[torch.Tensor]:
    """By all tiers."""
    given = ids.to(model.device)
    found = []
    for _ in range(3):
        found.append(model(input_ids=given, use_cache=False).logits.cpu())
        found.append(model.generate(given, **GREEDY).cpu())
    return found


def expect_gone(function: Any, *arguments: Any) -> None:
    """What happened, why, and what next."""
    text = error_of(function, *arguments)
    # From far away nobody can tell who it was.
    told = ("djinnd there, djinn-gate",) if CARRIER else ("djinnd was stopped", "Start djinnd")
    for part in ("gone", *told, "oad the model again"):
        assert part in text, text


def main(scratch: Path) -> None:
    zoo.make_checkpoint("llama", scratch / "llama")
    auto = transformers.AutoModelForCausalLM
    expected = use(zoo.load_local(scratch / "llama", zoo.entry("llama")))
    djinn.enable()
    device = djinn.device(0)
    daemon = Daemon(scratch, ())
    os.environ["DJINN_HOST"] = daemon.host
    old = auto.from_pretrained(scratch / "llama").eval()
    assert all(map(torch.equal, expected, use(old)))
    value, kept = torch.arange(100.0).to(device) * 2, torch.nn.Linear(4, 4).to(device)
    value.sum().item()
    waiting = value + 1  # recorded only
    daemon.stop()

    expect_gone(torch.Tensor.cpu, value)
    for lost in (value, waiting, value[3:], old.lm_head.weight):
        expect_gone(torch.mul, lost, 2)
    expect_gone(use, old)
    for lost in (value, waiting, old.lm_head.weight):
        shown = repr(lost)  # as a notebook does, which must not break
        assert "<gone: djinnd's session has ended>" in shown and str(tuple(lost.shape)) in shown
    assert "No djinnd answers" in error_of((torch.ones(3, device=device) * 2).cpu)
    text = error_of(auto.from_pretrained, scratch / "llama")
    assert "No djinnd answers" in text and "memory" not in text, text
    assert text.count("Start ") == 1, text

    daemon = Daemon(scratch, ())
    assert torch.equal((torch.ones(3, device=device) * 2).cpu(), torch.full((3,), 2.0))
    new = auto.from_pretrained(scratch / "llama").eval()
    assert all(map(torch.equal, expected, use(new)))
    for lost in (value, waiting, old.lm_head.weight):
        expect_gone(torch.Tensor.cpu, lost)
    expect_gone(use, old)
    old.load_state_dict({name: one.cpu() for name, one in new.state_dict().items()})
    del old, value, waiting, kept
    assert all(map(torch.equal, expected, use(new))), "what died was not the new session's"
    assert len(daemon.observer.models()) == 1

    # Killed, and there again before anybody noticed.
    daemon.process.kill()
    daemon.process.wait()
    daemon = Daemon(scratch, ())
    with warnings.catch_warnings():
        warnings.simplefilter("error", djinn.PerformanceWarning)
        expect_gone(lambda: new.generate(ids, **GREEDY))
    expect_gone(use, new)
    last = auto.from_pretrained(scratch / "llama").eval()
    assert all(map(torch.equal, expected, use(last)))

    # djinnd goes on; this session alone is ended.
    (session,) = [one for one in daemon.observer.sessions() if one["name"] != "observer"]
    terminate = [str(BIN / "djinnctl"), "--host", daemon.host, "terminate", session["id"]]
    subprocess.run(terminate, check=True)
    assert "Its own user ended the session with djinnctl terminate" in error_of(use, last)
    again = auto.from_pretrained(scratch / "llama").eval()
    assert all(map(torch.equal, expected, use(again)))
    daemon.stop()
    # Nobody is asked for a sequence group: another djinnd may be waited for, in vain.
    asked = AssertionError("djinnd is asked for a sequence group")
    with mock.patch("djinn.torch._device.Group", side_effect=asked):
        expect_gone(lambda: again.generate(ids, **GREEDY))


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    main(Path(sys.argv[1]))
