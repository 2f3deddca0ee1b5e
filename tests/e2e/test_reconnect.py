# SPDX-License-Identifier: Apache-2.0
"""djinnd is stopped or killed, and comes back: what its clients hear, and how they go on."""

import contextlib
import ctypes
import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int32, c_size_t, c_uint64
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl
from private_daemon import BIN, DEADLINE_S, ROOT, Daemon, wait_until
from systemd_double import Systemd
from test_c_client import (
    ConnectOptions,
    Failure,
    Input,
    Library,
    OnToken,
    Output,
    Prompt,
    Ref,
    Symbol,
    address,
)
from test_service import on_a_block_device

IDS = np.array([[101, 7592, 2088, 1012, 102]])
PROMPT = [256, *b"The kernel "]
DOUBLE = """srg 1 "double"
symbol n 1..1000
input %x : float32[n]
%y = aten::add.Tensor(%x, %x)
output %y
"""
BIAS = """srg 1 "bias"
weight %w "embeddings.LayerNorm.bias" : float32[384]
%y = aten::add.Tensor(%w, %w)
output %y
"""
X = np.arange(5, dtype=np.float32)
GONE = 500
HOW = [signal.SIGKILL, signal.SIGTERM]
# Each language meets one of them in the default tier, and both in the full one.
IN_C = [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
IN_CPP = [pytest.param(signal.SIGKILL, marks=pytest.mark.full), signal.SIGTERM]


class Restarting:
    """A djinnd that comes and goes at one path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = f"unix:{directory}/djinnd.sock"
        self.start()

    def start(self) -> None:
        self.daemon: Daemon | None = Daemon(self.directory, ())

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.observer.close()
            daemon.process.send_signal(how)
            daemon.process.wait(DEADLINE_S)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.stop(how)
        self.start()

    @property
    def sessions(self) -> int:
        """Beside the observer's."""
        assert self.daemon is not None
        return len(self.daemon.observer.sessions()) - 1


@pytest.fixture
def djinnd(tmp_path: Path) -> Iterator[Restarting]:
    if len(str(tmp_path)) > 80:
        pytest.skip("the temporary directory's path is too long for a socket's address")
    one = Restarting(tmp_path)
    try:
        yield one
    finally:
        one.stop()


def expect_lost(use: Callable[[], object], text: str | None = None) -> None:
    with pytest.raises(djinn.LostError, match=text) as lost:
        use()
    assert lost.value.code == "disconnected"


# --- Python


class Everything:
    """Of each kind of handle one."""

    def __init__(self, session: djinn.Session, minilm: Path, byte_model: Path) -> None:
        self.session = session
        self.model = session.load(minilm)
        self.encoder = djinn.Encoder(session, minilm)
        self.generator = djinn.Generator(session, byte_model)
        self.program = session.define(DOUBLE)
        self.ref = session.put(X)
        self.group = self.generator.sequence(1, 16)

    def uses(self) -> list[Callable[[], Any]]:
        session = self.session
        return [
            lambda: self.encoder.embed(IDS),
            lambda: self.generator.generate([PROMPT], max_new_tokens=4).tokens,
            lambda: self.program(x=X)["y"],
            lambda: self.program(x=self.ref)["y"],
            self.ref.numpy,
            lambda: self.group.crop(0),
            lambda: session.run_once(DOUBLE, x=self.ref)["y"],
            lambda: session.define(BIAS, self.model)()["y"],
            lambda: session.run_once(BIAS, self.model)["y"],
        ]

    def close(self) -> None:
        self.ref.release()
        self.group.drop()
        self.model.close()


@pytest.mark.parametrize("how", HOW)
def test_handles_of_a_lost_session_say_so_and_new_ones_give_the_same(
    djinnd: Restarting, minilm: Path, byte_model: Path, how: signal.Signals
) -> None:
    with djinn.connect(djinnd.host) as session:
        old = Everything(session, minilm, byte_model)
        expected = [use() for use in old.uses()]
        first = session.id
        djinnd.stop(how)
        for use in old.uses():
            expect_lost(use)
        djinnd.start()
        for use in old.uses():
            expect_lost(use, "a session that is gone.*djinnd")
        # Who names a handle connects to nobody.
        wait_until(lambda: djinnd.sessions == 0, "djinnd has no session")
        new = Everything(session, minilm, byte_model)
        assert session.id != first
        for use in old.uses():
            expect_lost(use, "a session that is gone")
        with pytest.raises(djinn.LostError):
            new.program(x=old.ref)
        old.close()  # what went with its session is given back already
        del old
        for use, value in zip(new.uses(), expected, strict=True):
            np.testing.assert_array_equal(use(), value)


def test_a_call_under_way_fails_within_a_second(djinnd: Restarting, byte_model: Path) -> None:
    def lasts_s() -> float:
        with djinn.connect(djinnd.host) as session:
            generator = djinn.Generator(session, byte_model)
            stream = generator.stream([PROMPT], max_new_tokens=900, stop_tokens=[])
            next(stream)
            began = time.monotonic()
            djinnd.stop()
            expect_lost(lambda: list(stream), "djinnd was stopped or restarted")
            lasted = time.monotonic() - began
        djinnd.start()
        return lasted

    # One of several: what else the machine does is not asked for.
    assert any(lasts_s() < 1 for _ in range(4))


def test_what_opens_something_waits_for_djinnd_and_no_longer_than_it_was_told(
    djinnd: Restarting, minilm: Path
) -> None:
    with djinn.connect(djinnd.host, reconnect_wait=0.3) as session:
        djinnd.stop()
        for call in (
            session.status,
            session.models,
            lambda: session.load(minilm),
            lambda: session.define(DOUBLE),
            lambda: session.put(X),
            lambda: djinn.Encoder(session, minilm),
        ):
            began = time.monotonic()
            expect_lost(call, "No djinnd answers")
            assert time.monotonic() - began < 5
        with pytest.raises(djinn.HandleError, match="No djinnd answers"):
            session.reconnect(0)
        djinnd.start()

        def loads() -> bool:  # a djinnd that has just begun may take longer than that to answer
            with contextlib.suppress(djinn.LostError):
                return bool(session.load(minilm).tensors)
            return False

        wait_until(loads, "djinnd answers in time")


def test_a_session_that_was_told_so_reconnects_only_when_asked(djinnd: Restarting) -> None:
    with djinn.connect(djinnd.host, reconnect_wait=None) as session:
        djinnd.restart()
        expect_lost(session.status)
        session.reconnect()
        session.reconnect()  # it lives: nothing happens
        assert djinnd.sessions == 1
        assert session.status()["sessions"] == 2


def test_threads_that_share_a_session_all_go_on(djinnd: Restarting, byte_model: Path) -> None:
    """Each opens its own generator anew whenever it hears that the one it has is gone."""
    done = [0] * 4
    failures: list[BaseException] = []
    enough = threading.Event()
    with djinn.connect(djinnd.host, reconnect_wait=DEADLINE_S) as session:
        expected = djinn.Generator(session, byte_model).generate([PROMPT], max_new_tokens=3).tokens

        def work(number: int) -> None:
            generator = None
            while not enough.is_set():
                try:
                    generator = generator or djinn.Generator(session, byte_model)
                    assert generator.generate([PROMPT], max_new_tokens=3).tokens == expected
                    done[number] += 1
                except djinn.LostError:
                    generator = None
                except BaseException as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(done))]
        for thread in threads:
            thread.start()
        for _ in range(3):
            seen = list(done)
            wait_until(
                lambda seen=seen: (
                    bool(failures)
                    or all(now > before for now, before in zip(done, seen, strict=True))
                ),
                "all threads go on",
            )
            djinnd.restart()
        enough.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)
        assert djinnd.sessions <= 1  # one session, however many threads


class Interrupted(Exception):
    pass


def test_a_signal_ends_a_wait_for_djinnd(djinnd: Restarting) -> None:
    def interrupt(*_: object) -> None:
        with pytest.raises(djinn.LimitError, match="interrupts"):
            session.status()
        raise Interrupted

    with djinn.connect(djinnd.host) as session:
        djinnd.stop()
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                session.reconnect(math.inf)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        djinnd.start()
        session.reconnect()


def test_closing_a_session_ends_a_wait_of_another_thread(djinnd: Restarting) -> None:
    session = djinn.connect(djinnd.host)
    djinnd.stop()
    path = djinnd.host.removeprefix("unix:")
    Path(path).unlink(missing_ok=True)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            session.reconnect(math.inf)
        except djinn.LostError as error:
            heard.append(error)

    thread = threading.Thread(target=wait)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen()
        silent.settimeout(DEADLINE_S)
        thread.start()
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            assert connection.recv(65536)  # from here on it waits for an answer
            session.close()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
    assert len(heard) == 1 and session.closed
    expect_lost(session.status, "The session is closed. Open another one with djinn.connect()")
    expect_lost(lambda: session.reconnect(0), "The session is closed")


def test_a_session_may_wait_for_djinnd_for_ever(djinnd: Restarting) -> None:
    with djinn.connect(djinnd.host, reconnect_wait=math.inf) as session:
        djinnd.restart()
        assert session.status()["sessions"] == 2


def test_waits_that_mean_nothing_are_refused(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        daemon.connect("wrong", reconnect_wait=-1.0)
    with daemon.connect("right") as session:
        for wrong in (-1.0, math.nan):
            with pytest.raises(ValueError, match="0 seconds or more"):
                session.reconnect(wrong)


def in_child(work: Callable[[], bool]) -> int:
    """Forks; the child's exit code."""
    pid = os.fork()
    if pid == 0:
        code = 2
        with contextlib.suppress(BaseException):
            code = 0 if work() else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_lost(use: Callable[[], object]) -> bool:
    try:
        use()
    except djinn.LostError as error:
        return "forked" in str(error)
    return False


def test_the_child_of_a_fork_gets_a_session_of_its_own(daemon: Daemon, byte_model: Path) -> None:
    with daemon.connect("parent") as session:
        generator = djinn.Generator(session, byte_model)
        program, ref = session.define(DOUBLE), session.put(X)
        parent = session.id

        def child() -> bool:
            lost = all(map(is_lost, (lambda: program(x=X), ref.numpy, lambda: program(x=ref))))
            ref.release()
            found = session.define(DOUBLE)(x=X)["y"]
            return lost and np.array_equal(found, 2 * X) and session.id != parent

        stream = generator.stream([PROMPT], max_new_tokens=200, stop_tokens=[])
        next(stream)
        assert in_child(child) == 0  # another thread is in the middle of a call
        for _ in stream:
            pass
        assert in_child(child) == 0
        np.testing.assert_array_equal(program(x=ref)["y"], 2 * X)
        assert session.id == parent


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_child_that_leaves_a_token_callback_leaves_the_generation_to_its_parent(
    daemon: Daemon, byte_model: Path, goes_on: bool
) -> None:
    parent, children = os.getpid(), list[int]()
    with daemon.connect("parent") as session:
        generator = djinn.Generator(session, byte_model)
        expected = generator.generate([PROMPT], max_new_tokens=60).tokens
        told: list[list[int]] = []

        def fork_once(token: djinn.Token) -> bool:
            if token.index == 1:
                children.append(os.fork())
            return os.getpid() == parent or goes_on

        def generate() -> None:
            told.extend(generator.generate([PROMPT], max_new_tokens=60, on_token=fork_once).tokens)

        lost = works = False
        try:
            lost = is_lost(generate)
            works = os.getpid() == parent or session.define(DOUBLE)(x=X)["y"][1] == 2
        finally:
            if os.getpid() != parent:
                os._exit(0 if lost and works else 1)
        assert told == expected
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_a_child_does_not_keep_its_parents_lease(daemon: Daemon) -> None:
    session = daemon.connect("parent")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)  # lives until the parent says so, and uses nothing
        os._exit(0)
    session.close()
    try:
        wait_until(
            lambda: "parent" not in {one["name"] for one in daemon.observer.sessions()},
            "the session has ended",
        )
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(pid, 0)


# --- C and C++


@contextlib.contextmanager
def client_in_c(library: Library, host: str, wait_ms: int = 0) -> Iterator[ctypes.c_void_p]:
    options = ConnectOptions(host=host.encode(), name=b"C", reconnect_wait_ms=wait_ms)
    client = ctypes.c_void_p()
    library("djinn_connect", byref(options), byref(client))
    yield client
    library.functions.djinn_close(client)


class HeldInC:
    def __init__(
        self, library: Library, client: ctypes.c_void_p, minilm: Path, llama: Path
    ) -> None:
        self.library, self.client = library, client
        self.model, self.ref = c_uint64(), Ref()
        self.encoder, self.generator, self.program = (ctypes.c_void_p() for _ in range(3))
        library("djinn_model_load", client, str(minilm).encode(), byref(self.model))
        library("djinn_encoder_open", client, str(minilm).encode(), byref(self.encoder))
        library("djinn_generator_open", client, str(llama).encode(), byref(self.generator))
        library("djinn_program_define", client, DOUBLE.encode(), c_uint64(0), byref(self.program))
        library("djinn_ref_put", client, address(X), c_size_t(X.nbytes), byref(self.ref))

    def encode(self) -> list[float]:
        class Batch(ctypes.Structure):
            _fields_ = (
                *(("rows", ctypes.c_uint32), ("tokens", ctypes.c_uint32)),
                *((name, ctypes.c_void_p) for name in ("ids", "mask", "types")),
                ("reserved", c_uint64 * 2),
            )

        out = np.zeros(384, np.float32)
        batch = Batch(1, IDS.size, IDS.ctypes.data)
        self.library("djinn_encoder_encode", self.encoder, byref(batch), address(out), None)
        return list(out)

    def generate(self) -> list[int]:
        prompt = Prompt((c_int32 * len(PROMPT))(*PROMPT), len(PROMPT))
        heard: list[int] = []

        def hear(_: object, row: int, index: int, token: int) -> int:
            heard.append(token)
            return int(len(heard) == 4)

        self.library(
            *("djinn_generator_generate", self.generator, byref(prompt), c_size_t(1), None),
            *(OnToken(hear), None, None),
        )
        return heard

    def run(self) -> list[float]:
        y = np.zeros_like(X)
        symbols, one = (Symbol * 1)(Symbol(b"n", X.size)), c_size_t(1)
        inputs = (Input * 1)(Input(b"x", None, 0, self.ref))
        outputs = (Output * 1)(Output(b"y", y.ctypes.data, y.nbytes))
        self.library("djinn_program_run", self.program, symbols, one, inputs, one, outputs, one)
        return list(y)

    def read(self) -> list[float]:
        out = np.zeros_like(X)
        self.library(
            *("djinn_ref_read", self.client, self.ref, c_uint64(0)),
            *(address(out), c_size_t(out.nbytes)),
        )
        return list(out)

    def define(self) -> None:
        program = ctypes.c_void_p()
        self.library("djinn_program_define", self.client, BIAS.encode(), self.model, byref(program))
        self.library.functions.djinn_program_close(program)

    def uses(self) -> list[Callable[[], Any]]:
        return [self.encode, self.generate, self.run, self.read, self.define]

    def close(self) -> None:
        self.library.functions.djinn_encoder_close(self.encoder)
        self.library.functions.djinn_generator_close(self.generator)
        self.library.functions.djinn_program_close(self.program)


def expect_gone(use: Callable[[], object]) -> None:
    with pytest.raises(Failure) as gone:
        use()
    assert gone.value.code == GONE


@pytest.mark.parametrize("how", IN_C)
def test_a_client_in_c_goes_on(
    djinnd: Restarting, minilm: Path, byte_model: Path, how: signal.Signals
) -> None:
    library = Library()
    with client_in_c(library, djinnd.host) as client:
        old = HeldInC(library, client, minilm, byte_model)
        expected = [use() for use in old.uses()]
        djinnd.restart(how)
        for use in old.uses():
            expect_gone(use)
        new = HeldInC(library, client, minilm, byte_model)
        for use in old.uses():
            expect_gone(use)
        expect_gone(lambda: library("djinn_ref_release", client, old.ref))
        expect_gone(lambda: library("djinn_model_close", client, old.model))
        old.close()
        assert [use() for use in new.uses()] == expected
        new.close()


def test_a_client_in_c_waits_no_longer_than_it_was_told(djinnd: Restarting) -> None:
    library = Library()
    with client_in_c(library, djinnd.host, wait_ms=300) as client:
        djinnd.stop()
        ref = Ref()
        put = ("djinn_ref_put", client, address(X), c_size_t(X.nbytes), byref(ref))
        expect_gone(lambda: library(*put))
        with pytest.raises(Failure, match="No djinnd answers") as absent:
            library("djinn_reconnect", client, c_uint64(0))
        assert absent.value.code == 200
        djinnd.start()
        library("djinn_reconnect", client, c_uint64(2**64 - 1))
        library(*put)


@pytest.mark.parametrize("given_up", [0, 1])
def test_a_child_in_c_leaves_a_generation_to_its_parent(
    daemon: Daemon, byte_model: Path, given_up: int
) -> None:
    parent, children, heard = os.getpid(), list[int](), list[int]()
    library, generator = Library(), ctypes.c_void_p()
    prompt = Prompt((c_int32 * len(PROMPT))(*PROMPT), len(PROMPT))

    def hear(_: object, row: int, index: int, token: int) -> int:
        heard.append(token)
        if index == 1:
            children.append(os.fork())
        return 0 if os.getpid() == parent else given_up

    with client_in_c(library, daemon.host) as client:
        library("djinn_generator_open", client, str(byte_model).encode(), byref(generator))
        code = 0
        try:
            library(
                *("djinn_generator_generate", generator, byref(prompt), c_size_t(1), None),
                *(OnToken(hear), None, None),
            )
        except Failure as failure:
            code = failure.code
        finally:
            if os.getpid() != parent:
                os._exit(0 if code == GONE and len(heard) == 2 else 1)
        assert code == 0 and len(heard) > 2
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        library.functions.djinn_generator_close(generator)


def test_a_client_in_c_says_how_long_its_model_stays(daemon: Daemon, byte_model: Path) -> None:
    library = Library()
    path, model = str(byte_model).encode(), c_uint64()
    with client_in_c(library, daemon.host) as client:
        for stay_ms, seconds in ((2**64 - 1, None), (1500, 1.5), (0, 0)):
            library("djinn_model_load_keep_alive", client, path, c_uint64(stay_ms), byref(model))
            (shown,) = ctl(daemon, "ps", "-j").items()
            assert shown["keep_alive_seconds"] == seconds
    wait_until(lambda: ctl(daemon, "ps", "-j").items() == [], "it goes with its last session")


@pytest.fixture(scope="module")
def program_in_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cpp") / "reconnecting"
    library = BIN.parent / "lib" / "libdjinn-client.so"
    command = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", str(out.name) + ".cc"]
    command += [f"-I{ROOT}/libdjinn-client/abi", str(library), "-o", str(out)]
    subprocess.run(command, check=True, timeout=120, cwd=Path(__file__).parent)
    return out


@pytest.mark.parametrize("how", IN_CPP)
def test_a_client_in_cpp_goes_on(
    djinnd: Restarting, program_in_cpp: Path, byte_model: Path, how: signal.Signals
) -> None:
    environment = os.environ | {"LD_LIBRARY_PATH": str(BIN.parent / "lib")}
    with subprocess.Popen(
        [program_in_cpp, byte_model],
        env=environment | {"DJINN_HOST": djinnd.host},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:

        def tell(*orders: str) -> list[str]:
            assert program.stdin is not None and program.stdout is not None
            said = []
            for order in orders:
                program.stdin.write(f"{order}\n")
                program.stdin.flush()
                said.append(program.stdout.readline().strip())
            return said

        opened, tokens, text = tell("open", "generate", "read")
        assert opened == "done" and text == "kept" and len(tokens.split()) == 5
        djinnd.stop(how)
        gone = ["error disconnected"] * 2
        assert tell("generate", "read") == gone
        djinnd.start()
        assert tell("reconnect", "generate", "read") == ["done", *gone]
        assert tell("open", "generate", "read") == ["done", tokens, text]
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(DEADLINE_S) == 0


# --- the service


@pytest.mark.parametrize("how", HOW)
def test_a_restart_of_the_service_costs_a_client_no_more_than_a_wait(
    systemd: Systemd, byte_model: Path, how: signal.Signals
) -> None:
    """systemd's socket takes the connection before djinnd is there."""
    if not on_a_block_device(byte_model):
        pytest.skip("the model lies on no block device; then it is told by its content only")
    systemd.start("--user", "--threads", "1")
    with systemd.connect() as session, systemd.connect() as other:
        model = session.load(byte_model, pin=True)
        systemd.hear_until(lambda: any(".record." in name for name in systemd.store))
        systemd.stop(how)
        expect_lost(lambda: session.define(DOUBLE, model))
        found: list[djinn.Model] = []
        thread = threading.Thread(target=lambda: found.append(session.load(byte_model)))
        thread.start()
        systemd.start("--user", "--threads", "1")
        thread.join(DEADLINE_S)
        assert [one.handle for one in found] == [model.handle]
        assert found[0].was_resident
        assert other.status()["bytes_read"] == 0
        # The same model has the same id, and the old lease on it is gone all the same.
        expect_lost(lambda: session.define(DOUBLE, model), "a session that is gone")
        session.define(DOUBLE, found[0])
