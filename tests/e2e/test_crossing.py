# SPDX-License-Identifier: Apache-2.0
"""What djinnd counts of a session: what its runs were, and every byte that crossed for them."""

from typing import Any

import djinn
import numpy as np
from command_line import ctl
from private_daemon import Daemon, running

DOUBLE = """srg 1 "double"
symbol n 1..4096
input %x "x" : float32[n]
%y = aten::add.Tensor(%x, %x)
output %y
"""
PROMPT = [256, *b"The "]
COMPLETION_BYTES = 64  # ipc/session_memory.h
FLOAT_BYTES = 4


def counts_of(daemon: Daemon, session: djinn.Session) -> dict[str, Any]:
    (mine,) = [one for one in daemon.observer.sessions() if one["id"] == session.id]
    return mine


def crossed(daemon: Daemon, session: djinn.Session) -> tuple[int, int]:
    mine = counts_of(daemon, session)
    return mine["bytes_in"], mine["bytes_out"]


def spent(daemon: Daemon, session: djinn.Session, work: Any) -> tuple[int, int]:
    before = crossed(daemon, session)
    work()
    after = crossed(daemon, session)
    return after[0] - before[0], after[1] - before[1]


def test_a_runs_tensors_cross_once_each_way_and_all_runs_cost_the_same(daemon: Daemon) -> None:
    with daemon.connect("crossing") as session:
        program = session.define(DOUBLE)

        def runs(times: int, elements: int) -> tuple[int, int]:
            x = np.ones(elements, np.float32)
            return spent(daemon, session, lambda: [program(x=x) for _ in range(times)])

        runs(2, 10), runs(2, 1010)  # the first is repeated when its memory is there
        one, small, large = runs(1, 10), runs(10, 10), runs(10, 1010)
        assert small == (10 * one[0], 10 * one[1])
        added = 10 * 1000 * FLOAT_BYTES
        assert (large[0] - small[0], large[1] - small[1]) == (added, added)
        assert one[1] >= COMPLETION_BYTES + 10 * FLOAT_BYTES
        assert crossed(daemon, session) == crossed(daemon, session), "only what crosses counts"


def test_what_a_graph_adds_to_a_run_is_counted(daemon: Daemon) -> None:
    with daemon.connect("graphs") as session:
        program = session.define(DOUBLE)
        x = np.ones(4, np.float32)
        by_id = spent(daemon, session, lambda: program(x=x))
        whole = spent(daemon, session, lambda: session.run_once(DOUBLE, x=x))
        assert whole[0] > by_id[0] + 50
        payload = spent(daemon, session, lambda: session.define(DOUBLE.replace("4096", "4095")))
        assert payload[0] > 50, "a program comes as a memfd"


def test_a_token_costs_a_completion(daemon: Daemon, byte_model: Any) -> None:
    with daemon.connect("tokens") as session:
        generator = djinn.Generator(session, byte_model)

        def tokens(count: int, rows: int) -> tuple[int, int]:
            return spent(
                daemon,
                session,
                lambda: generator.generate(
                    [PROMPT] * rows, max_new_tokens=count, min_new_tokens=count, stop_tokens=[]
                ),
            )

        tokens(4, 1)  # what is sent once
        for rows, completions in ((1, 1), (8, 1), (9, 2)):
            tokens(4, rows)
            short, long = tokens(8, rows), tokens(24, rows)
            assert long[0] == short[0]
            assert long[1] - short[1] == 16 * completions * COMPLETION_BYTES
        mine = counts_of(daemon, session)
        assert mine["tokens"] == 4 + (4 + 8 + 24) * (1 + 8 + 9)
        assert (mine["generations"], mine["tier"]) == (10, "2")


def test_the_kinds_of_runs_are_told_apart(daemon: Daemon) -> None:
    with daemon.connect("kinds") as session:
        assert counts_of(daemon, session)["tier"] == "-"
        x = np.ones(4, np.float32)
        for _ in range(2):
            session.run_once(DOUBLE, x=x)
        assert counts_of(daemon, session)["tier"] == "0"
        program = session.define(DOUBLE)
        for _ in range(3):
            program(x=x)
        mine = counts_of(daemon, session)
        assert (mine["graphs_run"], mine["programs_run"], mine["failed"]) == (2, 3, 0)
        (row,) = [r for r in ctl(daemon, "sessions").table() if r[0] == session.id]
        assert row[-4] == "1"  # before two words of CROSSED, and LOCAL
        (shown,) = ctl(daemon, "show", session.id, "-j").items()
        assert shown["bytes_in"] + shown["bytes_out"] >= mine["bytes_in"] + mine["bytes_out"]


def test_counts_outlive_a_worker() -> None:
    with running() as daemon, daemon.connect("survivor") as session:
        program = session.define(DOUBLE)
        x = np.ones(4, np.float32)
        for _ in range(5):
            program(x=x)
        before = counts_of(daemon, session)
        daemon.kill_worker()
        program(x=x)
        after = counts_of(daemon, session)
        assert after["programs_run"] == before["programs_run"] + 1 == 6
        assert after["bytes_in"] > before["bytes_in"]
