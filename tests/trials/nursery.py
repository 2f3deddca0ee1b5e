# SPDX-License-Identifier: Apache-2.0
"""Starts Python programs in forks of itself, with what they all import imported, which takes longer
than most of them: see fork_server.py. One that is to begin `anew` is started from nothing, as a
shell would."""

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "ghosts"))

import peft  # noqa: F401
import torch  # noqa: F401
from fork_server import Asked, serve
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer  # noqa: F401


def run(asked: dict[str, Any]) -> None:
    os.chdir(asked["directory"])
    os.environ.update(asked["environment"])
    out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    if asked["anew"]:
        os.execv(sys.executable, [sys.executable, *asked["words"]])
    sys.argv = asked["words"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def asked_for(request: dict[str, Any]) -> Asked:
    return Asked(Path(request["log"]), request["limit_s"], partial(run, request))


if __name__ == "__main__":
    serve(asked_for)
