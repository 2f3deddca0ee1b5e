# SPDX-License-Identifier: Apache-2.0
"""A short siege, of every attacker. `./dev fuzz daemon SECONDS` lays a long one."""

import os
import random

import pytest
from siege import besieged

SECONDS = 24.0 if os.environ.get("DJINN_TEST_TIER") == "full" else 14.0


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")
def test_strangers_and_neighbours_of_attackers_compute_what_they_would_alone() -> None:
    seed = random.SystemRandom().randrange(2**32)
    with besieged(SECONDS, seed) as siege:
        report = siege.hold(list(siege.attackers))
    assert report.findings == [], f"seed {seed}"
    assert set(report.attacks) == set(siege.attackers)
    assert all(bystander["rounds"] > 0 for bystander in report.bystanders)
