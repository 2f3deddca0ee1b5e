# SPDX-License-Identifier: Apache-2.0
"""djinn_cancel() of the C library: it ends the call that another thread is in, with a real worker
at the other end. libdjinn-client/abi/djinn_test.cc has the rest."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from private_daemon import BIN, Daemon, stopped, wait_until

CANCELLED, DISCONNECTED = 504, 500
LIBRARY = BIN.parent / "lib" / "libdjinn-client.so.1"
ON_TOKEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int32
)
# So many products of matrices take many seconds, each of them a moment.
PRODUCTS = 2000
SIZE = 1024


class ConnectOptions(ctypes.Structure):
    _fields_ = (
        ("host", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("staging_bytes", ctypes.c_uint64),
        ("reconnect_wait_ms", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 3),
    )


class Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 508))


class Prompt(ctypes.Structure):
    _fields_ = (("tokens", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_size_t))


class GenerateOptions(ctypes.Structure):
    _fields_ = (
        ("max_new_tokens", ctypes.c_uint32),
        ("min_new_tokens", ctypes.c_uint32),
        ("stop_tokens", ctypes.POINTER(ctypes.c_int32)),
        ("stop_token_count", ctypes.c_size_t),
        ("rest", ctypes.c_uint64 * 10),
    )


class Input(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("data_bytes", ctypes.c_size_t),
        ("ref", ctypes.c_uint64),
    )


class Client:
    """A session by the C library, and how its last call ended."""

    def __init__(self, daemon: Daemon) -> None:
        self.library = ctypes.CDLL(str(LIBRARY))
        self.error = Error()
        self.handle = ctypes.c_void_p()
        options = ConnectOptions(host=daemon.host.encode(), name=b"canceller")
        self.expect("djinn_connect", ctypes.byref(options), ctypes.byref(self.handle))

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments, ctypes.byref(self.error)))

    def expect(self, name: str, *arguments: Any) -> None:
        assert self.call(name, *arguments) == 0, self.error.message

    def cancel(self) -> None:
        self.library.djinn_cancel(self.handle)

    def close(self) -> None:
        self.library.djinn_close(self.handle)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    one = Client(daemon)
    try:
        yield one
    finally:
        one.close()


class Generating:
    """A generation that goes on for long, and counts its tokens."""

    def __init__(self, client: Client, model: Path) -> None:
        self.client, self.seen, self.code = client, 0, 0
        self.generator = ctypes.c_void_p()
        path = str(model).encode()
        client.expect("djinn_generator_open", client.handle, path, ctypes.byref(self.generator))

    def run(self, tokens: int = 900) -> None:
        def take(*_: Any) -> int:
            self.seen += 1
            return 0

        options = GenerateOptions()
        self.client.library.djinn_generate_options_init(ctypes.byref(options))
        options.max_new_tokens = tokens
        options.stop_tokens = (ctypes.c_int32 * 1)()
        prompt = Prompt((ctypes.c_int32 * 3)(256, 84, 104), 3)
        self.code = self.client.call(
            "djinn_generator_generate",
            *(self.generator, ctypes.byref(prompt), ctypes.c_size_t(1), ctypes.byref(options)),
            *(ON_TOKEN(take), None, None),
        )

    def close(self) -> None:
        self.client.library.djinn_generator_close(self.generator)


def test_a_generation_is_ended_by_another_thread_and_the_next_one_runs(
    client: Client, byte_model: Path
) -> None:
    generating = Generating(client, byte_model)
    thread = threading.Thread(target=generating.run)
    thread.start()
    wait_until(lambda: generating.seen > 3, "it generates")
    client.cancel()
    thread.join(60)
    assert generating.code == CANCELLED, client.error.message
    assert generating.seen < 900
    generating.seen = 0
    generating.run(tokens=5)
    assert (generating.code, generating.seen) == (0, 5)
    generating.close()


def test_a_generator_may_outlive_its_client(daemon: Daemon, byte_model: Path) -> None:
    client = Client(daemon)
    generating = [Generating(client, byte_model) for _ in range(2)]
    generating[0].close()
    client.close()
    generating[1].run(tokens=5)
    assert generating[1].code == DISCONNECTED
    assert b"The client that this was opened on is closed." in client.error.message
    generating[1].close()


def test_a_run_ends_at_its_next_operator(client: Client, daemon: Daemon) -> None:
    lines = ['srg 1 "products"', f"input %x0 : float32[{SIZE}, {SIZE}]"]
    lines += [f"%x{n + 1} = aten::mm(%x{n}, %x0)" for n in range(PRODUCTS)]
    text = "\n".join([*lines, f"output %x{PRODUCTS}", ""]).encode()
    program = ctypes.c_void_p()
    client.expect(
        "djinn_program_define", client.handle, text, ctypes.c_uint64(0), ctypes.byref(program)
    )
    data = (ctypes.c_float * (SIZE * SIZE))()
    given = Input(b"x0", ctypes.addressof(data), ctypes.sizeof(data), 0)
    codes: list[int] = []

    def run() -> None:
        one = ctypes.c_size_t(1)
        nothing = ctypes.c_size_t(0)
        codes.append(
            client.call(
                "djinn_program_run",
                *(program, None, nothing, ctypes.byref(given), one, None, nothing),
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: is_running(daemon), "it runs")
    client.cancel()
    thread.join(60)
    assert codes == [CANCELLED], client.error.message
    assert not is_running(daemon)
    client.library.djinn_program_close(program)


def cancelled(client: Client, call: Callable[[], int]) -> int:
    """How a call ends that is cancelled until it ends: where it has not begun that is in vain."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call()))
    thread.start()

    def has_ended() -> bool:
        client.cancel()
        return not thread.is_alive()

    wait_until(has_ended, "the call has ended")
    return codes[0]


def of_canceller(daemon: Daemon) -> tuple[int, int]:
    """Its models and its sequence groups."""
    (one,) = (each for each in daemon.observer.sessions() if each["name"] == "canceller")
    return one["models"], one["sequences"]


def settled(client: Client, daemon: Daemon) -> tuple[int, int]:
    """What is given back goes with a later call, when the answer has come."""
    client.expect("djinn_get_status", client.handle, ctypes.byref((ctypes.c_uint64 * 64)()))
    return of_canceller(daemon)


def test_every_call_ends_while_djinnd_is_stopped_and_leaves_nothing(
    client: Client, daemon: Daemon, byte_model: Path
) -> None:
    path = str(byte_model).encode()
    model = ctypes.c_uint64()
    status = (ctypes.c_uint64 * 64)()
    out = ctypes.c_void_p()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("djinn_get_status", (ctypes.byref(status),)),
        ("djinn_model_load", (path, ctypes.byref(model))),
        ("djinn_generator_open", (path, ctypes.byref(out))),
        ("djinn_program_define", (b'srg 1 "late"', ctypes.c_uint64(0), ctypes.byref(out))),
    ]
    for name, arguments in calls:
        with stopped([daemon.process.pid]):

            def call(name: str = name, arguments: tuple[Any, ...] = arguments) -> int:
                return client.call(name, client.handle, *arguments)

            assert cancelled(client, call) == CANCELLED, client.error.message
            assert b"The call was cancelled before djinnd had answered." in client.error.message
        wait_until(lambda: settled(client, daemon) == (0, 0), f"what {name} asked for is gone")
    generating = Generating(client, byte_model)
    generating.run(tokens=5)
    assert (generating.code, generating.seen) == (0, 5)
    generating.close()


def test_a_generation_ends_while_djinnd_is_stopped_and_the_next_one_runs(
    client: Client, daemon: Daemon, byte_model: Path
) -> None:
    generating = Generating(client, byte_model)
    for _ in range(3):
        generating.seen = 0
        thread = threading.Thread(target=generating.run)
        thread.start()
        wait_until(lambda: generating.seen > 3, "it generates")
        with stopped([daemon.process.pid]):
            client.cancel()
            thread.join(60)
            assert not thread.is_alive()
        assert generating.code == CANCELLED, client.error.message
        assert generating.seen < 900
    generating.seen = 0
    generating.run(tokens=5)
    assert (generating.code, generating.seen) == (0, 5)
    wait_until(lambda: of_canceller(daemon) == (1, 0), "its sequence groups are dropped")
    generating.close()


def is_running(daemon: Daemon) -> bool:
    return any(one["name"] == "canceller" and one["running"] for one in daemon.observer.sessions())
