# SPDX-License-Identifier: Apache-2.0
"""What it takes to look at one session's graphs is that session's to wait for, and not the others'
of its user: neither as the graph is defined, nor as the next worker looks at it again."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import djinn
import numpy as np
import pytest
from private_daemon import running

MEMORY = 600 << 20
X = np.ones(4, np.float32)

DOUBLE = """srg 1 "double"
input %x : float32[4]
%y = aten::add.Tensor(%x, %x)
output %y
"""


def slow_graph(name: str, nodes: int, symbols: int) -> str:
    """Each node is looked at for four values of the symbols, and one more for each of them."""
    lines = [f'srg 1 "{name}"']
    lines += [f"symbol s{i} 1..{1000 + i}" for i in range(symbols)]
    lines += ["input %x : float32[4, 4]", "input %t : float32[4]"]
    lines += [f"input %i{i} : float32[s{i}]" for i in range(symbols)]
    lines += [f"%y{i} = aten::cosine_embedding_loss(%x, %x, %t, 0.0, 1)" for i in range(nodes)]
    return "\n".join([*lines, f"output %y{nodes - 1}", ""])


def test_a_graph_that_is_too_much_to_look_at_is_refused_before_it_is() -> None:
    with running("--memory", str(MEMORY)) as host, host.connect("bad") as session:
        with pytest.raises(djinn.Error, match="looked at for 68 choices of its 64 symbols"):
            session.define(slow_graph("much", 60_000, 64))
        assert host.worker()["restarts"] == 0


def test_a_graph_that_is_looked_at_for_long_keeps_nobody_else_waiting() -> None:
    with running("--memory", str(MEMORY)) as host:
        old = host.connect("old")
        old.run_once(DOUBLE, x=X)
        told: list[object] = []

        def define() -> None:
            with host.connect("bad") as bad:
                try:
                    told.append(bad.define(slow_graph("slow", 3_500, 64)))
                except djinn.Error as error:
                    told.append(error)

        def newcomer(name: str) -> None:
            with host.connect("new") as new:
                new.define(DOUBLE.replace("double", name))(x=X)

        definer = threading.Thread(target=define)
        definer.start()
        turns = 0
        while definer.is_alive():
            old.run_once(DOUBLE, x=X)
            newcomer(f"double {turns}")
            turns += 1
        definer.join()
        assert turns > 2, "others waited for it, or it is defined at once, and shows nothing"
        assert isinstance(told[0], (djinn.Program, djinn.LimitError)), told
        assert host.worker()["restarts"] == 0


def test_slow_programs_of_one_session_come_back_behind_the_others() -> None:
    with running("--memory", str(MEMORY)) as host:
        good, bad = host.connect("good"), host.connect("bad")
        mine = good.define(DOUBLE)
        slow = [bad.define(slow_graph(f"slow {i}", 1_000, 64)) for i in range(3)]
        inputs = {f"i{i}": np.ones(1, np.float32) for i in range(64)}
        for _ in range(2):
            os.kill(host.worker_pid(), signal.SIGKILL)
            with ThreadPoolExecutor(1) as pool:
                theirs = pool.submit(
                    slow[2], x=np.ones((4, 4), np.float32), t=np.ones(4, np.float32), **inputs
                )
                good.run_once(DOUBLE, x=X)
                mine(x=X)
                assert not theirs.done(), "it awaits its program, behind two others"
                assert len(theirs.result()) == 1
