# SPDX-License-Identifier: Apache-2.0
"""djinnd is gone: whoever needs what it held gets a djinn.LostError, and who only looks is told at
once, without the wait for a djinnd that comes back."""

import json
from typing import Any

import forked
import pytest
from private_daemon import CARRIER, running

# From far away nobody can tell who it was.
WHY = "because djinnd there, djinn-gate" if CARRIER else "because djinnd was stopped or restarted"
WAIT_S = 10  # for a djinnd that comes back: what looks must take far less

PROGRAM = """
import json, time, torch, djinn, djinn.torch
djinn.enable()
device = djinn.torch.device
read, uploaded = torch.ones(3, device=device) + 1, torch.arange(3.0).to(device)
recorded = read * 2
read.tolist()
model = torch.nn.Linear(200, 200).to(device)
model(torch.ones(1, 200, device=device)).sum().item()
print("ready", flush=True)
input()

def outcome(call):
    try:
        return str(call())
    except djinn.LostError as error:
        return f"LostError, {isinstance(error, RuntimeError)}: {error}"

begin = time.monotonic()
told = {
    "read": outcome(lambda: repr(read)),
    "recorded": outcome(lambda: repr(recorded)),
    "new": outcome(lambda: repr(torch.ones(3, device=device))),
    "uploaded": outcome(lambda: repr(uploaded)),
    "summary": outcome(torch.remote_accelerator.memory_summary),
    "explain": outcome(lambda: djinn.explain(model)),
    "value": outcome(read.tolist),
    "computed": outcome(lambda: read + 1),
    "took": time.monotonic() - begin,
}
print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    with (
        running() as daemon,
        forked.started("-c", PROGRAM, DJINN_HOST=daemon.host) as program,
    ):
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        daemon.stop()
        said, _ = program.communicate("\n", timeout=120)
    return dict(json.loads(said))


def test_what_was_held_shows_that_it_is_gone(told: dict[str, Any]) -> None:
    for name in ("read", "recorded"):
        assert "<gone: djinnd's session has ended>" in told[name], told


def test_what_was_not_computed_yet_shows_why_it_has_no_value(told: dict[str, Any]) -> None:
    for name in ("new", "uploaded"):
        assert "<without a value: the connection to djinnd is lost" in told[name], told


def test_who_needs_it_gets_an_error_that_is_pytorch_s_and_ours(told: dict[str, Any]) -> None:
    for name in ("summary", "value", "computed"):
        assert told[name].startswith("LostError, True: "), told
        assert WHY in told[name], told


def test_explain_tells_of_the_loss(told: dict[str, Any]) -> None:
    assert "its weights are gone with djinnd's session" in told["explain"], told


def test_none_of_that_waits_for_another_djinnd(told: dict[str, Any]) -> None:
    assert told["took"] < WAIT_S / 2, told
