# SPDX-License-Identifier: Apache-2.0
"""Ghosts of two processes whose loops stay in Python: their steps are computed together, and each
has what it has alone."""

from contextlib import ExitStack
from pathlib import Path

import forked
import llama
from private_daemon import running, wait_until

LOOPER = Path(__file__).with_name("looper.py")


class Looper:
    def __init__(self, stack: ExitStack, model: Path, seed: int, host: str) -> None:
        self.process = stack.enter_context(
            forked.started(str(LOOPER), str(model), str(seed), DJINN_HOST=host)
        )

    def start(self) -> None:
        print(file=self.process.stdin, flush=True)

    def result(self) -> str:
        line = self.process.stdout.readline()
        assert line, "it has ended by itself"
        return line


def test_steps_of_pythons_loops_are_computed_together_and_each_has_what_it_has_alone(
    tmp_path: Path,
) -> None:
    # Wide enough for a step to take longer than a moment: the other's may come meanwhile.
    model = llama.save(tmp_path, 3, hidden_size=512, intermediate_size=1376)
    with running() as daemon, ExitStack() as stack:
        loopers = [Looper(stack, model, seed, daemon.host) for seed in range(2)]

        alone = []
        for one in loopers:
            one.start()
            alone.append(one.result())
        assert alone[0] != alone[1]
        assert daemon.worker()["runs_together"] == 0

        def meet() -> bool:
            for one in loopers:
                one.start()
            assert [one.result() for one in loopers] == alone
            return int(daemon.worker()["runs_together"]) > 0

        wait_until(meet, "what was computed together is counted")
