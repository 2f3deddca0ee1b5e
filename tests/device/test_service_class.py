# SPDX-License-Identifier: Apache-2.0
"""`djinn.config.service_class`: what a process's ghosts get of a busy lane."""

from pathlib import Path
from typing import Any

import djinn
import pytest
from alone import run_alone
from command_line import ctl
from private_daemon import BIN, Daemon, running


def classes(daemon: Daemon) -> dict[str, set[str]]:
    """Of sessions that have run something: as what the lane saw them."""
    found: dict[str, set[str]] = {}
    for lane in ctl(daemon, "show", "--schedule", "-j").items():
        for one in lane["decisions"]:
            found.setdefault(one["session"], set()).add(one["class"])
    return found


def test_a_process_s_ghosts_are_of_the_class_that_it_chose(checkpoint: Path) -> None:
    with running() as daemon:
        source = CHILD.format(checkpoint=checkpoint, djinnctl=BIN / "djinnctl")
        sessions = run_alone(daemon, source).split()
        assert classes(daemon) == {sessions[0]: {"batch"}, sessions[1]: {"idle"}}


CHILD = """
import subprocess
import djinn.torch, torch, transformers

def own(former=None):
    with djinn.connect(observer=True) as observer:
        there = [one["id"] for one in observer.sessions() if one["granted_bytes"]]
    (own,) = [one for one in there if one != former]  # that may be leaving yet
    return own

djinn.enable()
djinn.config.service_class = "batch"
ghost = transformers.AutoModelForCausalLM.from_pretrained("{checkpoint}")
ghost.generate(torch.arange(3, 9)[None].to(ghost.device), do_sample=False, max_new_tokens=4)
first = own()
print(first)
subprocess.run(["{djinnctl}", "terminate", first], check=True, capture_output=True)
djinn.config.service_class = "idle"  # of the next session
(torch.ones(3, device=djinn.torch.device) + 1).tolist()
print(own(first))
"""


def test_a_session_keeps_the_class_that_it_began_with(ghost: Any) -> None:
    with pytest.raises(djinn.RequestError, match=r'begun as "normal".*before a model') as refused:
        djinn.config.service_class = "batch"
    assert refused.value.code == "unsupported"
    assert djinn.config.service_class == "normal"
    djinn.config.service_class = "normal"


def test_an_unknown_class_is_told_with_those_that_there_are() -> None:
    for name in ("realtime", ""):
        expected = f'is "interactive", "normal", "batch" or "idle", not {name!r}'
        with pytest.raises(ValueError, match=expected):
            djinn.config.service_class = name
    assert "service_class='normal'" in repr(djinn.config)
