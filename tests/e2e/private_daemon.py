# SPDX-License-Identifier: Apache-2.0
"""A private djinnd for tests: started in a directory of its own, looked at through its status."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import djinn

if TYPE_CHECKING:
    from gates import Door

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DJINN_BUILD_DIR", ROOT / "build" / "release")) / "bin"
THREADS = 2
DEADLINE_S = 60.0
# All that tests do by Daemon.host goes through djinn-reach and djinn-gate: "stdio" by its standard
# input and output, "tls" by its door on the network.
CARRIER = os.environ.get("DJINN_TEST_CARRIER", "")
STARTER = "DJINN_TEST_STARTER"
os.environ[STARTER] = str(os.getpid())
hosts_of_test: list[tempfile.TemporaryDirectory[str]] = []  # where its profiles of gates are


def far_host(host: str, programs: Path = BIN) -> str:
    """The same djinnd as if it were on another machine."""
    os.environ["DJINN_ALLOW_EXEC"] = "1"
    if str(programs) not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return f"exec:exec {programs}/djinn-gate --stdio --host {host}"


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Returns when the condition holds; fails the test at the deadline."""
    end = time.monotonic() + deadline_s
    pause = time.sleep  # style: between two looks at a condition
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        pause(0.002)


@contextmanager
def repeated(work: Callable[[], Any]) -> Iterator[None]:
    """By a thread, for as long as this lasts. What it raised is raised at the end."""
    over = threading.Event()
    failures: list[Exception] = []

    def repeat() -> None:
        try:
            while not over.is_set():
                work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def children_of(pid: int) -> list[int]:
    """Processes, whichever of its threads has started them."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # threads end
            children += [int(one) for one in (task / "children").read_text().split()]
    return children


def children_named(pid: int, name: str) -> list[int]:
    """By the names of their programs."""
    found = []
    for child in children_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                found.append(child)
    return found


def own_pids() -> set[int]:
    """Of this process' sessions, as djinnd knows them: those on another machine are of gates, which
    have the environment of who had them started."""
    own = f"{STARTER}={os.environ[STARTER]}".encode()
    found = {os.getpid()}
    for one in Path("/proc").iterdir():
        with suppress(OSError):  # it is no process, or ends
            is_gate = (one / "comm").read_text() == "djinn-gate\n"
            if is_gate and own in (one / "environ").read_bytes().split(b"\0"):
                found.add(int(one.name))
    return found


def open_files(pid: int, name: str) -> int:
    """How many descriptors a process has of files with this in their names."""
    count = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += name in os.readlink(one)
    return count


def door_of_test(directory: Path, djinnd: str) -> "Door":
    """A gate that whoever this process starts may come to, too."""
    from gates import Door

    if not hosts_of_test:
        hosts_of_test.append(tempfile.TemporaryDirectory(prefix="djinn-hosts."))
        os.environ["XDG_CONFIG_HOME"] = hosts_of_test[0].name
    door = Door(directory, djinnd, Path(hosts_of_test[0].name), as_user=True)
    door.enrol("test", directory.name)
    return door


class Daemon:
    """A running djinnd --user, or the service for a group of users."""

    def __init__(
        self,
        directory: Path,
        arguments: tuple[str, ...],
        programs: Path = BIN,
        socket_group: str | None = None,
        threads: int | None = THREADS,
    ) -> None:
        """threads: None: djinnd's own default."""
        self.directory = directory
        self.threads = threads
        self.near_host = f"unix:{directory}/djinnd.sock"
        self.door = door_of_test(directory, self.near_host) if CARRIER == "tls" else None
        self.host = self.near_host
        if CARRIER == "stdio":
            self.host = self.far_host
        elif self.door:
            self.host = self.door.host
        self.log = directory / "djinnd.log"
        mode = ("--socket-group", socket_group) if socket_group else ("--user",)
        command = [
            *(str(programs / "djinnd"), *mode, "--runtime-dir", str(directory)),
            *(() if threads is None else ("--threads", str(threads))),
            *arguments,
        ]
        if "--kernels" not in arguments:  # which nobody waits for here
            command += ["--kernels", "standard"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {"STATE_DIRECTORY": str(directory / "state")}
                | {"XDG_STATE_HOME": str(directory / "state")},
            )
        wait_until(self._answers, f"djinnd answers; its log: {self.log.read_text()}")

    @property
    def far_host(self) -> str:
        return far_host(self.near_host)

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"djinnd ended: {self.log.read_text()}")
        try:
            self.observer = self.connect("observer", observer=True)
        except djinn.HandleError:
            return False
        return True

    def connect(self, name: str, **options: Any) -> djinn.Session:
        return djinn.connect(self.host, name, **options)

    def status(self) -> dict[str, Any]:
        return self.observer.status()

    def sessions_named(self, *names: str) -> int:
        return sum(one["name"] in names for one in self.observer.sessions())

    def worker(self) -> dict[str, Any]:
        (worker,) = self.status()["workers"]
        return worker

    def worker_pid(self) -> int:
        """Waits while there is none: it is told as 0, and whoever kills 0 kills the tests."""
        pids: list[int] = []

        def is_there() -> bool:
            pids.append(self.worker()["pid"])
            return pids[-1] > 0

        wait_until(is_there, "a worker is there")
        return pids[-1]

    def kill_worker(self) -> None:
        """Returns when there is another one."""
        before = self.worker_pid()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.worker()["pid"] not in (0, before), "there is another worker")

    def stop(self) -> None:
        self.observer.close()
        self.process.terminate()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            if self.door:
                self.door.stop()


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[Daemon]:
    """A djinnd for the time of the block, which must then end when asked, with exit code 0."""
    with tempfile.TemporaryDirectory(prefix="djinn-test.") as directory:
        daemon = Daemon(Path(directory), arguments, **options)
        try:
            yield daemon
        except BaseException:
            sys.stderr.write(f"djinnd's log:\n{daemon.log.read_text()}")
            raise
        finally:
            daemon.stop()
        assert daemon.process.returncode in (0, -signal.SIGTERM), daemon.log.read_text()


def stands_still(process: int) -> bool:
    """Whether each of its threads has stopped, or is gone: a signal that stops takes a moment."""
    tasks = Path(f"/proc/{process}/task")
    with suppress(FileNotFoundError, ProcessLookupError):  # threads end
        states = {(one / "stat").read_text().rpartition(") ")[2][0] for one in tasks.iterdir()}
        return states <= {"T", "Z", "X"}
    return not tasks.exists()


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        for process in processes:
            wait_until(partial(stands_still, process), "it stands still")
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def loaders_of(daemon: Daemon) -> list[int]:
    """Those that read or hash, and the one that waits for something to load."""
    return children_named(daemon.process.pid, "djinn-loader")


@contextmanager
def no_load_goes_on(daemon: Daemon) -> Iterator[None]:
    """Every loader is stopped, those that come meanwhile as well."""
    pause = time.sleep  # style: between two looks for new ones

    def signal_all(number: signal.Signals) -> None:
        for loader in loaders_of(daemon):
            with suppress(ProcessLookupError):  # its load was done
                os.kill(loader, number)

    def stop_all() -> None:
        signal_all(signal.SIGSTOP)
        pause(0.002)

    signal_all(signal.SIGSTOP)
    try:
        with repeated(stop_all):
            yield
    finally:
        signal_all(signal.SIGCONT)
