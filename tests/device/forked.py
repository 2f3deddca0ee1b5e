# SPDX-License-Identifier: Apache-2.0
"""Programs of Python in forks of one process that has PyTorch and transformers imported, which
takes longer than most of them. What they import of djinn each imports itself, and its end is short:
handlers of atexit run, and no object is freed. In the full tier each begins from nothing, as a
shell would start it.

The words of a program follow `python`: `-c SOURCE` or a script, and arguments.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Timer
from typing import NoReturn, Union

ANEW = os.environ.get("DJINN_TEST_TIER") == "full"
LIMIT_S = 120.0
REQUEST_BYTES_MAX = 1 << 17
CONNECTION = "DJINN_TEST_FORKS"  # variable of the environment: the server's end


class Fork:
    """A program that runs, with what tests use of subprocess.Popen. `with` waits for its end."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        (stdin, in_), (out, stdout), (err, stderr), (ended, end) = (os.pipe() for _ in range(4))
        request = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
        assert len(request) < REQUEST_BYTES_MAX
        given = [stdin, stdout, stderr, end]
        try:
            socket.send_fds(server(), [request], given)
        finally:
            for one in given:
                os.close(one)
        self.stdin, self.stdout, self.stderr = os.fdopen(in_, "w"), os.fdopen(out), os.fdopen(err)
        self._ended = os.fdopen(ended)
        self.pid = int(server().recv(REQUEST_BYTES_MAX))
        self.returncode: int | None = None

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.stdin, self.stdout, self.stderr):
            one.close()
        self.wait()

    def wait(self, timeout: float = LIMIT_S) -> int:
        if self.returncode is None:
            has_ended, _, _ = select.select([self._ended], [], [], timeout)
            assert has_ended, f"it did not end within {timeout} s"
            self.returncode = int(self._ended.read())
            self._ended.close()
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self, said: str = "", timeout: float = LIMIT_S) -> tuple[str, str]:
        self.stdin.write(said)
        self.stdin.close()
        limit = Timer(timeout, self.kill)
        limit.start()
        with ThreadPoolExecutor(1) as pool:
            err = pool.submit(self.stderr.read)
            out = self.stdout.read()
            self.wait(timeout)
            limit.cancel()
            return out, err.result()


Program = Union[Fork, "subprocess.Popen[str]"]


def started(*words: str, **more: str) -> Program:
    """With pipes in place of its standard streams. more: variables of the environment."""
    environment = {**os.environ, **more}
    if not ANEW:
        return Fork(words, environment)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words], env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def run(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """What it said, once it has ended."""
    with started(*words, **more) as program:
        out, err = program.communicate(timeout=LIMIT_S)
        assert program.returncode is not None
        return subprocess.CompletedProcess(list(words), program.returncode, out, err)


@cache
def server() -> socket.socket:
    """The connection to a process of serve(), which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, CONNECTION: str(theirs.fileno())},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(ours.close)
    return ours


# --- in that process ------------------------------------------------------------------------------


def serve(connection: socket.socket) -> list[str] | None:
    """Forks for each request. Gives a fork what it is to run, and None where nobody asks any more.
    No fork keeps what belongs to another."""
    ends: dict[int, int] = {}  # of the process of a descriptor: where it is told how it ended
    pids: dict[int, int] = {}
    while True:
        for one in select.select([connection, *ends], [], [])[0]:
            if one is not connection:
                code = os.waitstatus_to_exitcode(os.waitpid(pids.pop(one), 0)[1])
                os.write(ends[one], str(code).encode())
                os.close(ends.pop(one))
                os.close(one)
                continue
            request, given, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 4)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                for kept in (*ends, *ends.values(), given.pop()):
                    os.close(kept)
                connection.close()
                return became(given, **json.loads(request))
            for its in given[:3]:
                os.close(its)
            process = os.pidfd_open(pid)
            pids[process], ends[process] = pid, given[3]
            connection.send(str(pid).encode())


def became(streams: Sequence[int], words: list[str], environment: Mapping[str, str]) -> list[str]:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    first = "" if words[0] == "-c" else str(Path(words[0]).parent)
    sys.path[0:1] = [first, *(path for path in paths if path and path not in sys.path)]
    return words


def run_program(words: list[str]) -> NoReturn:
    code = 0
    try:
        interpret(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to free all that was imported, each fork would first copy it


def interpret(words: list[str]) -> None:
    if words[0] != "-c":
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        return
    sys.argv = ["-c", *words[2:]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(words[1], "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

    gc.freeze()  # no fork looks through all that
    server_module = sys.modules["__main__"]  # whose functions run while a program has its name
    program = serve(socket.socket(fileno=int(os.environ.pop(CONNECTION))))
    if program is not None:
        run_program(program)
