# SPDX-License-Identifier: Apache-2.0
"""A process that has imported what many programs need, and starts each in a fork of itself.

Requests come on its stdin, a line of JSON each. Answers go through a pipe of their own, for what a
library prints is no answer. The forks have neither pipe.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import children

START_LIMIT_S = 60.0  # to import everything, once
STOP_LIMIT_S = 10.0
ANSWERS = "DJINN_TEST_ANSWERS"  # variable of the environment: the pipe's number


class Asked(NamedTuple):
    """What a request is about: see children.forked."""

    log: Path
    limit_s: float
    run: Callable[[], None]


class ForkServer:
    """Starts a script that calls serve(), and asks it. Who made it closes it. For one thread."""

    def __init__(self, command: list[str], environment: Mapping[str, str], limit_s: float) -> None:
        """command: the script and its arguments. limit_s: the most that a request has."""
        self._limit_s = START_LIMIT_S + limit_s
        answers, theirs = os.pipe()
        self._answers = os.fdopen(answers)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                bufsize=0,
                env={**os.environ, **environment, ANSWERS: str(theirs)},
                stdin=subprocess.PIPE,
                pass_fds=[theirs],
            )
        finally:
            os.close(theirs)

    def ask(self, request: Any) -> str | None:
        """None when its fork ended well; else a sentence on how that, or the server, ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return self._how_it_ended()
        answered, _, _ = select.select([self._answers], [], [], self._limit_s)
        if not answered:
            self._process.kill()
            self._process.wait()
            return f"the forking process did not answer within {self._limit_s:.0f} s"
        answer = self._answers.readline()
        return json.loads(answer) if answer else self._how_it_ended()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._code()
        self._answers.close()

    def _how_it_ended(self) -> str:
        return f"the forking process {children.ending(self._code())}"

    def _code(self) -> int:
        try:
            return self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def serve(understood: Callable[[Any], Asked]) -> None:
    """In the script, once it has imported everything and computed nothing: does what is asked."""
    if ANSWERS not in os.environ:
        sys.exit(f"{sys.argv[0]} is started by tests: see fork_server.py")
    with os.fdopen(int(os.environ.pop(ANSWERS)), "w") as answers:
        os.set_inheritable(answers.fileno(), False)
        for line in sys.stdin:
            asked = understood(json.loads(line))
            ended = children.forked(asked.log, asked.limit_s, partial(_alone, answers, asked.run))
            print(json.dumps(ended), file=answers, flush=True)


def _alone(answers: IO[str], run: Callable[[], None]) -> None:
    """In the fork: where it outlives the server, the end of that is seen nevertheless."""
    answers.close()
    run()
