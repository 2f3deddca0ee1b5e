# SPDX-License-Identifier: Apache-2.0
"""A sequence group's memory is sparse: a slot that a graph touches exists from then on. So who may
touch them all pays for them all first, and nobody gets a page that is in no account."""

import djinn
import numpy as np
import pytest
from private_daemon import running

MIB = 1 << 20
MEMORY = 160 * MIB
TOUCHES = {
    "reads": "%y = aten::sum(%k)",
    "appends": "%z = djinn::kv_append(%k, %n, cap - t)\n%y = aten::sum(%n)",
    "appends and reads": "%z = djinn::kv_append(%k, %n, past)\n%y = aten::sum(%z)",
}


def graph(touch: str) -> str:
    return f"""srg 1 "slots"
symbol t 1..64 tokens
symbol past 0..32 past
symbol cap 128..262144 capacity
sequence %k key 0 : float32[1, 4, cap, 64]
input %n : float32[1, 4, t, 64]
{touch}
output %y
"""


@pytest.mark.parametrize("touch", TOUCHES)
def test_slots_that_nobody_paid_for_are_touched_by_nobody(touch: str) -> None:
    fresh = np.ones((1, 4, 1, 64), np.float32)
    with running("--memory", str(MEMORY)) as host, host.connect("slots") as session:
        program = session.define(graph(TOUCHES[touch]))
        large = session.sequence(1, 1, 4, 64, "float32", 262_144)  # 256 MiB of keys alone
        with pytest.raises(djinn.Error):
            program(n=fresh, sequence=large)
        assert host.status()["memory_granted_bytes"] < 32 * MIB
        small = session.sequence(1, 1, 4, 64, "float32", 1024)
        try:
            program(n=fresh, sequence=small)
        except djinn.RequestError as error:
            assert touch == "appends" and "crop first" in str(error)
        else:
            (own,) = [one for one in host.observer.sessions() if one["name"] == "slots"]
            assert own["granted_bytes"] >= 2 * 4 * 64 * 1024 * 4  # keys and values, each slot
