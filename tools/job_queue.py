# SPDX-License-Identifier: Apache-2.0
"""Jobs that run side by side, one more than there are cores, and some that need a core each."""

import concurrent.futures
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Job(Generic[Result]):
    run: Callable[[], Result]
    serial: bool = False  # bounds the time of what it starts: needs about a core for itself

    @property
    def slots(self) -> int:
        return 2 if self.serial else 1


def run_jobs(
    jobs: Sequence[Job[Result]],
    cores: int,
    done: Callable[[Result], None],
    stop: Callable[[], None],
) -> None:
    """Runs all; `done` is called in this thread with each result as it comes.

    They begin in their order, but for the serial ones: these come before all others, one at a time,
    and beside one at most `cores` - 1 others run. So no core waits for a serial job's turn.

    Where a job or `done` raises, or this thread is interrupted, no further job begins; `stop` has
    to end those that run, and what was raised is raised again.
    """
    waiting = sorted(jobs, key=lambda job: not job.serial)
    running: dict[concurrent.futures.Future[Result], Job[Result]] = {}
    with concurrent.futures.ThreadPoolExecutor(cores + 1) as pool:
        try:
            while waiting or running:
                while job := startable(waiting, running.values(), cores):
                    waiting.remove(job)
                    running[pool.submit(job.run)] = job
                ended, _ = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in ended:
                    del running[future]
                    done(future.result())
        except BaseException:
            stop()
            raise


def startable(
    waiting: Sequence[Job[Result]], running: Collection[Job[Result]], cores: int
) -> Job[Result] | None:
    free = cores + 1 - sum(job.slots for job in running)
    serial_runs = any(job.serial for job in running)
    fitting = (job for job in waiting if job.slots <= free and not (job.serial and serial_runs))
    return next(fitting, None)
