# SPDX-License-Identifier: Apache-2.0
"""The C ABI against a daemon: the examples, and every function through ctypes."""

import ctypes
import mmap
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
)
from pathlib import Path

import djinn
import numpy as np
import pytest
from command_line import ctl
from private_daemon import BIN, ROOT, Daemon, running, stopped, wait_until

LIBRARY = BIN.parent / "lib" / "libdjinn-client.so.1"
INVALID_ARGUMENT = 100
IDS = [101, 7592, 2088, 1012, 102]
DOUBLE = """srg 1 "double"
symbol n 1..1000
input %x : float32[n]
%y = aten::add.Tensor(%x, %x)
output %y
"""


class Error(ctypes.Structure):
    _fields_ = (("code", c_uint32), ("message", c_char * 508))


class ConnectOptions(ctypes.Structure):
    _fields_ = (
        ("host", c_char_p),
        ("name", c_char_p),
        ("staging_bytes", c_uint64),
        ("reconnect_wait_ms", c_uint64),
        ("reserved", c_uint64 * 3),
    )


class Ref(ctypes.Structure):
    _fields_ = (("index", c_uint32), ("generation", c_uint32))


class Symbol(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("value", c_int64))


class Input(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("data", ctypes.c_void_p), ("bytes", c_size_t), ("ref", Ref))


class Output(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", c_size_t),
        ("ref", Ref),
        ("dtype", c_uint32),
        ("rank", c_uint32),
        ("sizes", c_int64 * 8),
        ("strides", c_int64 * 8),
        ("offset", c_uint64),
    )


class Prompt(ctypes.Structure):
    _fields_ = (("tokens", POINTER(c_int32)), ("count", c_size_t))


class Batch(ctypes.Structure):
    _fields_ = (
        ("rows", c_uint32),
        ("tokens", c_uint32),
        ("ids", POINTER(c_int64)),
        ("mask", POINTER(c_int64)),
        ("types", POINTER(c_int64)),
        ("reserved", c_uint64 * 2),
    )


class GenerateOptions(ctypes.Structure):
    _fields_ = (
        ("max_new_tokens", c_uint32),
        ("min_new_tokens", c_uint32),
        ("stop_tokens", POINTER(c_int32)),
        ("stop_token_count", c_size_t),
        ("pad_token", c_int32),
        ("greedy", c_int32),
        ("temperature", c_float),
        ("top_k", c_uint32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("seed", c_uint64),
        ("random_offset", c_uint64),
        ("row_errors", POINTER(Error)),
        ("reserved", c_uint64 * 3),
    )


class ModelOptions(ctypes.Structure):
    _fields_ = (("numerics", c_char_p), ("weights", c_char_p), ("reserved", c_uint64 * 6))


OnToken = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, c_uint32, c_uint32, c_int32)


class Failure(Exception):
    """What a function of the library returned."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message.decode())
        self.code = error.code


class Library:
    def __init__(self) -> None:
        self.functions = ctypes.CDLL(str(LIBRARY))

    def __call__(self, name: str, *arguments: object) -> None:
        error = Error()
        if getattr(self.functions, name)(*arguments, byref(error)) != 0:
            raise Failure(error)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@contextmanager
def connected(daemon: Daemon, library: Library) -> Iterator[ctypes.c_void_p]:
    options = ConnectOptions(host=daemon.host.encode(), name=b"ctypes")
    out = ctypes.c_void_p()
    library("djinn_connect", byref(options), byref(out))
    yield out
    library.functions.djinn_close(out)


@pytest.fixture
def client(daemon: Daemon, library: Library) -> Iterator[ctypes.c_void_p]:
    with connected(daemon, library) as out:
        yield out


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_the_example_in_c_gives_the_package_s_numbers(
    daemon: Daemon, session: djinn.Session, minilm: Path
) -> None:
    done = subprocess.run(
        [str(BIN / "embed"), str(minilm), *map(str, IDS)],
        env={**os.environ, "DJINN_HOST": daemon.host},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    given = np.array([float(line) for line in done.stdout.split()], np.float32)
    expected = djinn.Encoder(session, minilm).embed(np.array([IDS]))[0, : len(given)]
    assert len(given) == 8
    assert given.tobytes() == expected.tobytes()


def test_the_example_in_c_says_that_nobody_answers(minilm: Path) -> None:
    done = subprocess.run(
        [str(BIN / "embed"), str(minilm), *map(str, IDS)],
        env={**os.environ, "DJINN_HOST": "unix:/nonexistent/djinnd.sock"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "No djinnd answers" in done.stderr


def ran(daemon: Daemon, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / program), *arguments],
        env={**os.environ, "DJINN_HOST": daemon.host},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_example_that_generates_prints_the_package_s_tokens(
    daemon: Daemon, session: djinn.Session, byte_model: Path
) -> None:
    prompt = [256, *b"The kernel "]
    done = ran(daemon, "gen", str(byte_model), "12", *map(str, prompt))
    assert done.returncode == 0, done.stderr
    expected = djinn.Generator(session, byte_model).generate([prompt], max_new_tokens=12)
    assert [int(line) for line in done.stdout.split()] == list(expected.tokens[0])


def test_the_example_that_generates_ends_at_ctrl_c(daemon: Daemon, byte_model: Path) -> None:
    """The worker stands still until the signal has come: no token is drawn before."""
    command = [str(BIN / "gen"), str(byte_model), "200", "256"]
    environment = {**os.environ, "DJINN_HOST": daemon.host}
    with djinn.connect(daemon.host) as session:
        djinn.Generator(session, byte_model)  # a worker has the model
        with stopped([daemon.worker()["pid"]]):
            program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            wait_until(
                lambda: any(one["pid"] == program.pid for one in session.sessions()),
                "the program has a session",
            )
            program.send_signal(signal.SIGINT)
        shown, _ = program.communicate()
    assert program.returncode == 0
    assert len(shown.splitlines()) == 1


def test_the_example_in_cpp_gives_the_package_s_likeness(
    daemon: Daemon, session: djinn.Session, minilm: Path
) -> None:
    rows = [IDS, [101, 7592, 102]]
    done = ran(daemon, "alike", str(minilm), *(" ".join(map(str, row)) for row in rows))
    assert done.returncode == 0, done.stderr
    encoder = djinn.Encoder(session, minilm)
    one, other = (encoder.embed(np.array([row]))[0] for row in rows)
    assert float(done.stdout) == pytest.approx(float(one @ other), abs=1e-4)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("gen", ["12", "x"]),
        ("gen", ["-1", "5"]),
        ("gen", ["12", str(1 << 32)]),
        ("alike", ["101", "101 x"]),
        ("alike", ["101", "10x"]),
    ],
)
def test_an_example_refuses_what_is_no_id(
    daemon: Daemon, minilm: Path, program: str, arguments: list[str]
) -> None:
    done = ran(daemon, program, str(minilm), *arguments)
    assert done.returncode in (1, 2)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


def test_the_header_for_cpp_says_what_it_needs(tmp_path: Path) -> None:
    source = tmp_path / "old.cc"
    source.write_text("#include <djinn.hpp>\n")
    headers = BIN.parents[2] / "libdjinn-client" / "abi"
    built = subprocess.run(
        ["c++", "-std=c++17", "-fsyntax-only", f"-I{headers}", str(source)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert built.returncode == 1
    errors = [line for line in built.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1, built.stderr
    assert "djinn.hpp needs C++20" in errors[0]


@pytest.mark.parametrize(
    ("ids", "types", "said"),
    [
        ([101, 999_999, 102], None, "Token 999999 is not in the vocabulary of "),
        ([101, -1, 102], None, "Token -1 is not in the vocabulary of "),
        ([101, 7592, 102], [0, 2, 0], "and 2 is none of them"),
    ],
)
def test_ids_that_are_no_tokens_are_refused_by_number(
    session: djinn.Session, minilm: Path, ids: list[int], types: list[int] | None, said: str
) -> None:
    encoder = djinn.Encoder(session, minilm)
    given = {} if types is None else {"types": np.array([types])}
    with pytest.raises(djinn.RequestError, match=said):
        encoder.embed(np.array([ids]), **given)


def test_the_library_shows_the_functions_of_djinn_h_and_nothing_else() -> None:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(LIBRARY)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {name.split("@")[0] for name in listed.stdout.split()} - {"DJINN_1"}
    assert "djinn_connect" in names
    assert {name for name in names if not name.startswith("djinn_")} == set()


def test_a_program_runs_on_buffers_and_on_refs(library: Library, client: ctypes.c_void_p) -> None:
    program = ctypes.c_void_p()
    library("djinn_program_define", client, DOUBLE.encode(), c_uint64(0), byref(program))
    x = np.arange(5, dtype=np.float32)
    y = np.zeros_like(x)
    symbols = (Symbol * 1)(Symbol(b"n", 5))
    inputs = (Input * 1)(Input(b"x", x.ctypes.data, x.nbytes))
    one = c_size_t(1)

    outputs = (Output * 1)(Output(b"y", y.ctypes.data, y.nbytes))
    library("djinn_program_run", program, symbols, one, inputs, one, outputs, one)
    assert y.tolist() == (2 * x).tolist()
    assert (outputs[0].dtype, outputs[0].rank, outputs[0].sizes[0]) == (9, 1, 5)

    kept = (Output * 1)(Output(b"y", None, 0))
    library("djinn_program_run", program, symbols, one, inputs, one, kept, one)
    inputs[0].ref = kept[0].ref
    library("djinn_program_run", program, symbols, one, inputs, one, outputs, one)
    assert y.tolist() == (4 * x).tolist()
    library("djinn_ref_release", client, kept[0].ref)
    with pytest.raises(Failure) as stale:
        library("djinn_program_run", program, symbols, one, inputs, one, outputs, one)
    assert stale.value.code in (200, 201)
    library.functions.djinn_program_close(program)


def test_a_view_of_an_input_goes_to_data_and_gets_no_ref(
    library: Library, client: ctypes.c_void_p
) -> None:
    text = 'srg 1 "view"\ninput %x : float32[4]\n%y = aten::view(%x, [2, 2])\noutput %y\n'
    program = ctypes.c_void_p()
    library("djinn_program_define", client, text.encode(), c_uint64(0), byref(program))
    x = np.arange(4, dtype=np.float32)
    y = np.zeros_like(x)
    none, one = c_size_t(0), c_size_t(1)
    inputs = (Input * 1)(Input(b"x", x.ctypes.data, x.nbytes))
    wanted = (Output * 1)(Output(b"y", None, 0))
    with pytest.raises(Failure, match="a view of an input") as refused:
        library("djinn_program_run", program, None, none, inputs, one, wanted, one)
    assert refused.value.code == INVALID_ARGUMENT
    assert wanted[0].ref.generation == 0
    outputs = (Output * 1)(Output(b"y", y.ctypes.data, y.nbytes))
    library("djinn_program_run", program, None, none, inputs, one, outputs, one)
    assert y.tolist() == x.tolist()
    library.functions.djinn_program_close(program)


def test_programs_that_were_closed_make_room_for_others(
    library: Library, client: ctypes.c_void_p
) -> None:
    for number in range(1200):
        program = ctypes.c_void_p()
        text = DOUBLE.replace("1000", str(1000 + number))
        library("djinn_program_define", client, text.encode(), c_uint64(0), byref(program))
        library.functions.djinn_program_close(program)


def test_a_run_that_fails_leaves_the_slots_of_its_refs_free(
    library: Library, client: ctypes.c_void_p
) -> None:
    program = ctypes.c_void_p()
    library("djinn_program_define", client, DOUBLE.encode(), c_uint64(0), byref(program))
    x = np.arange(5, dtype=np.float32)
    inputs = (Input * 1)(Input(b"x", x.ctypes.data, x.nbytes))
    kept = (Output * 1)(Output(b"y", None, 0))
    one = c_size_t(1)
    for _ in range(3):
        with pytest.raises(Failure) as failed:
            more = (Symbol * 1)(Symbol(b"n", 6))
            library("djinn_program_run", program, more, one, inputs, one, kept, one)
        assert "slot" not in str(failed.value)
    symbols = (Symbol * 1)(Symbol(b"n", 5))
    library("djinn_program_run", program, symbols, one, inputs, one, kept, one)
    library("djinn_ref_release", client, kept[0].ref)
    library.functions.djinn_program_close(program)


def test_names_that_a_program_does_not_have_are_not_found(
    library: Library, client: ctypes.c_void_p
) -> None:
    program = ctypes.c_void_p()
    library("djinn_program_define", client, DOUBLE.encode(), c_uint64(0), byref(program))
    x = np.zeros(5, np.float32)
    one = c_size_t(1)
    for symbol, source, target in ((b"m", b"x", b"y"), (b"n", b"z", b"y"), (b"n", b"x", b"w")):
        symbols = (Symbol * 1)(Symbol(symbol, 5))
        inputs = (Input * 1)(Input(source, x.ctypes.data, x.nbytes))
        outputs = (Output * 1)(Output(target, x.ctypes.data, x.nbytes))
        with pytest.raises(Failure) as missing:
            library("djinn_program_run", program, symbols, one, inputs, one, outputs, one)
        assert missing.value.code == 200
    library.functions.djinn_program_close(program)


def test_a_text_that_is_no_graph_is_malformed(library: Library, client: ctypes.c_void_p) -> None:
    program = ctypes.c_void_p()
    with pytest.raises(Failure, match="line 1") as refused:
        library("djinn_program_define", client, b"nonsense", c_uint64(0), byref(program))
    assert refused.value.code == 101
    assert program.value is None


def test_a_ref_keeps_bytes(library: Library, client: ctypes.c_void_p) -> None:
    data = np.arange(1000, dtype=np.uint8)
    ref = Ref()
    library("djinn_ref_put", client, address(data), c_size_t(data.nbytes), byref(ref))
    part = np.zeros(10, np.uint8)
    library("djinn_ref_read", client, ref, c_uint64(500), address(part), c_size_t(10))
    assert part.tolist() == data[500:510].tolist()
    with pytest.raises(Failure, match="inside the ref, which has 1000 bytes"):
        library("djinn_ref_read", client, ref, c_uint64(995), address(part), c_size_t(10))
    library("djinn_ref_release", client, ref)


def test_a_ref_may_be_larger_than_staging(library: Library, client: ctypes.c_void_p) -> None:
    data = np.random.default_rng(1).integers(0, 256, 20_000_001, np.uint8)
    ref, out = Ref(), np.zeros_like(data)
    library("djinn_ref_put", client, address(data), c_size_t(data.nbytes), byref(ref))
    library("djinn_ref_read", client, ref, c_uint64(0), address(out), c_size_t(out.nbytes))
    assert np.array_equal(out, data)


def test_a_put_that_fails_leaves_its_slot_free(library: Library) -> None:
    data = np.zeros(5 << 20, np.uint8)
    put = (address(data), c_size_t(data.nbytes))
    with running("--session-quota", str(16 << 20)) as daemon, connected(daemon, library) as client:
        kept, other = Ref(), Ref()
        library("djinn_ref_put", client, *put, byref(kept))
        with pytest.raises(Failure):
            for _ in range(4):
                library("djinn_ref_put", client, *put, byref(other))
        library("djinn_ref_release", client, kept)
        library("djinn_ref_put", client, *put, byref(other))


def test_a_put_that_does_not_fit_is_refused_early_in_whole_sentences(library: Library) -> None:
    """Of the bytes behind the first part, which would be read if all were sent, none is there."""
    mib = 1 << 20
    quota = 64 * mib
    room = mmap.mmap(-1, 48 * mib)
    begin = ctypes.addressof(c_char.from_buffer(room))
    behind = ctypes.c_void_p(begin + 4 * mib)
    assert ctypes.CDLL(None).mprotect(behind, c_size_t(44 * mib), ctypes.c_int(0)) == 0
    data = ctypes.c_void_p(begin)
    with running("--session-quota", str(quota)) as daemon, connected(daemon, library) as client:
        kept, other = Ref(), Ref()
        library("djinn_ref_put", client, b"x" * (40 * mib), c_size_t(40 * mib), byref(kept))
        for size, said in ((quota + 1, "may hold"), (48 * mib, "quota")):
            with pytest.raises(Failure, match=said) as refused:
                library("djinn_ref_put", client, data, c_size_t(size), byref(other))
            assert refused.value.code == 301
            assert re.fullmatch(r"[A-Z0-9].*\.", str(refused.value))


def test_a_generation_streams_and_stops_when_told(
    library: Library, client: ctypes.c_void_p, session: djinn.Session, byte_model: Path
) -> None:
    generator = ctypes.c_void_p()
    library("djinn_generator_open", client, str(byte_model).encode(), byref(generator))
    tokens = [256, *b"The kernel "]
    prompt = Prompt((c_int32 * len(tokens))(*tokens), len(tokens))
    heard: list[tuple[int, int, int]] = []

    def generate(most: int) -> list[tuple[int, int, int]]:
        heard.clear()

        def hear(_: object, row: int, index: int, token: int) -> int:
            heard.append((row, index, token))
            return int(len(heard) == most)

        library(
            *("djinn_generator_generate", generator, byref(prompt), c_size_t(1), None),
            *(OnToken(hear), None, None),
        )
        return list(heard)

    whole = generate(1000)
    assert 1 < len(whole) <= 64
    assert [(row, index) for row, index, _ in whole] == [(0, i) for i in range(len(whole))]
    assert generate(3) == whole[:3]
    library.functions.djinn_generator_close(generator)


def test_options_that_begin_from_zero_mean_the_defaults(
    library: Library, client: ctypes.c_void_p, byte_model: Path
) -> None:
    generator = ctypes.c_void_p()
    library("djinn_generator_open", client, str(byte_model).encode(), byref(generator))
    tokens = [256, *b"The kernel "]
    prompt = Prompt((c_int32 * len(tokens))(*tokens), len(tokens))

    def generate(options: object) -> list[int]:
        heard: list[int] = []

        def hear(_: object, row: int, index: int, token: int) -> int:
            heard.append(token)
            return 0

        library(
            *("djinn_generator_generate", generator, byref(prompt), c_size_t(1), options),
            *(OnToken(hear), None, None),
        )
        return heard

    whole = generate(None)
    for zeros in (GenerateOptions(), GenerateOptions(greedy=1), GenerateOptions(top_p=0.5)):
        assert generate(byref(zeros)) == whole
    assert generate(byref(GenerateOptions(max_new_tokens=3, greedy=1))) == whole[:3]
    drawn = [generate(byref(GenerateOptions(temperature=1.5, seed=seed))) for seed in range(4)]
    assert any(one != whole for one in drawn)
    library.functions.djinn_generator_close(generator)


def test_nothing_stands_for_null_and_what_is_reserved_is_zero(
    library: Library, client: ctypes.c_void_p, byte_model: Path, minilm: Path
) -> None:
    generator, encoder = ctypes.c_void_p(), ctypes.c_void_p()
    library("djinn_generator_open", client, str(byte_model).encode(), byref(generator))
    library("djinn_encoder_open", client, str(minilm).encode(), byref(encoder))
    hear = OnToken(lambda *_: 0)
    prompt = Prompt((c_int32 * 1)(256), 1)
    ids = (c_int64 * 3)(101, 7592, 102)
    room = (c_float * 384)()

    def generate(prompts: object, count: int, heard: object, options: object = None) -> None:
        library(
            *("djinn_generator_generate", generator, prompts, c_size_t(count), options),
            *(heard, None, None),
        )

    def encode(batch: Batch, out: object = room) -> None:
        library("djinn_encoder_encode", encoder, byref(batch), out, None)

    odd = GenerateOptions(reserved=(c_uint64 * 3)(0, 0, 1))
    whole = {"rows": 1, "tokens": 3, "ids": ids}
    for action, code, said in (
        (lambda: generate(None, 1, hear), 100, "is NULL"),
        (lambda: generate(byref(prompt), 1, OnToken()), 100, "is NULL"),
        (lambda: generate(byref(Prompt(None, 1)), 1, hear), 100, "is NULL"),
        (lambda: generate(None, 0, hear), 100, "1 to 32 prompts"),
        (lambda: generate(byref(Prompt(None, 0)), 1, hear), 100, "1 to 32 prompts"),
        (lambda: generate(byref(prompt), 1, hear, byref(odd)), 100, "reserved must be zero"),
        (lambda: encode(Batch(rows=1, tokens=3)), 100, "is NULL"),
        (lambda: encode(Batch(**whole), None), 100, "is NULL"),
        (lambda: encode(Batch(rows=1), None), 103, "with 1 to 256 rows"),
        (lambda: encode(Batch(**whole, reserved=(c_uint64 * 2)(1, 0))), 100, "reserved must"),
        (lambda: encode(Batch(**whole, mask=(c_int64 * 3)(1, 5, 0))), 104, "and 5 is neither"),
    ):
        with pytest.raises(Failure, match=said) as refused:
            action()
        assert refused.value.code == code
    encode(Batch(**whole))
    library.functions.djinn_encoder_close(encoder)
    library.functions.djinn_generator_close(generator)


def test_a_model_in_int8_gives_the_package_s_tokens(
    daemon: Daemon,
    library: Library,
    client: ctypes.c_void_p,
    session: djinn.Session,
    byte_model: Path,
) -> None:
    """Of one model, whose matrices are int8."""
    prompt = [256, *b"The kernel "]
    package = djinn.Generator(session, byte_model, weights="int8")
    expected = package.generate([prompt]).tokens[0]
    models = len(session.models())
    (shown,) = ctl(daemon, "show", package.model.id, "-j").items()
    assert shown["dtypes"][0]["dtype"] == "int8"
    generator, heard = ctypes.c_void_p(), []

    def hear(_: object, row: int, index: int, token: int) -> int:
        heard.append(token)
        return 0

    options = ModelOptions(weights=b"int8")
    open_with = ("djinn_generator_open_with", client, str(byte_model).encode())
    library(*open_with, byref(options), byref(generator))
    given = Prompt((c_int32 * len(prompt))(*prompt), len(prompt))
    library(
        *("djinn_generator_generate", generator, byref(given), c_size_t(1), None),
        *(OnToken(hear), None, None),
    )
    assert heard == expected
    assert len(session.models()) == models
    library.functions.djinn_generator_close(generator)


def test_an_encoder_is_computed_as_it_was_asked_for(
    library: Library, client: ctypes.c_void_p, session: djinn.Session, minilm: Path
) -> None:
    ids, room = (c_int64 * 3)(101, 7592, 102), (c_float * 384)()
    seen = []
    for asked in ({"numerics": "fast-only"}, {"weights": "int8"}, {}):
        encoder = ctypes.c_void_p()
        options = ModelOptions(**{name: word.encode() for name, word in asked.items()})
        given = client, str(minilm).encode(), byref(options)
        library("djinn_encoder_open_with", *given, byref(encoder))
        batch = Batch(rows=1, tokens=3, ids=ids)
        library("djinn_encoder_encode", encoder, byref(batch), room, None)
        library.functions.djinn_encoder_close(encoder)
        package = djinn.Encoder(session, minilm, **asked)
        assert list(room) == package.embed([list(ids)]).tolist()[0]
        seen.append(list(room))
    assert seen[0] != seen[2] and seen[1] != seen[2]
    assert np.allclose(seen[0], seen[2], atol=1e-5)
    assert np.allclose(seen[1], seen[2], atol=3e-2)


@pytest.mark.parametrize("kind", ["encoder", "generator"])
def test_how_a_model_cannot_be_opened_is_told_with_what_there_is(
    library: Library, client: ctypes.c_void_p, byte_model: Path, minilm: Path, kind: str
) -> None:
    opened = ctypes.c_void_p()
    directory = minilm if kind == "encoder" else byte_model
    odd = (c_uint64 * 6)(0, 0, 0, 0, 0, 1)
    for options, code, said in (
        (ModelOptions(weights=b"int4"), 100, "no form of weights 'int4'. There is int8"),
        (ModelOptions(weights=b""), 100, "There is int8"),
        (ModelOptions(numerics=b"quick"), 100, "exact, fast and fast-only"),
        (ModelOptions(numerics=b""), 100, "no numerics ''. There are exact"),
        (ModelOptions(numerics=b"exact", weights=b"int8"), 102, "Ask for the numerics fast"),
        (ModelOptions(reserved=odd), 100, "reserved must be zero"),
    ):
        with pytest.raises(Failure, match=said) as refused:
            library(
                *(f"djinn_{kind}_open_with", client, str(directory).encode()),
                *(byref(options), byref(opened)),
            )
        assert refused.value.code == code
    assert not opened


class Info(ctypes.Structure):
    _fields_ = (("words", c_uint32 * 8),)


def test_no_function_of_djinn_h_crashes_on_nothing_but_null(library: Library) -> None:
    """What returns a code says that it is the caller's fault, and the rest gives zeros."""
    header = (ROOT / "libdjinn-client/abi/djinn.h").read_text()
    declared = re.findall(r"^DJINN_API ([\w ]+?[ *])(djinn_\w+)\(([^;]*)\);", header, re.MULTILINE)
    assert len(declared) >= 25
    for gives, name, parameters in declared:
        function = getattr(library.functions, name)
        numbers = [
            c_uint64(0) if "*" not in one and "djinn_on_token" not in one else None
            for one in re.sub(r"/\*.*?\*/", "", parameters, flags=re.DOTALL).split(",")
        ]
        if gives.strip() == "djinn_code":
            error = Error()
            assert function(*numbers[:-1], byref(error)) == 100, name
            assert b"NULL" in error.message, name
            assert function(*numbers) == 100, name
        elif gives.strip().endswith("_info"):
            function.restype = Info
            assert not any(function(*numbers).words), name
        elif gives.strip() == "void":
            function(*numbers)


def test_a_token_callback_cannot_use_its_client(
    library: Library, client: ctypes.c_void_p, byte_model: Path
) -> None:
    generator = ctypes.c_void_p()
    library("djinn_generator_open", client, str(byte_model).encode(), byref(generator))
    prompt = Prompt((c_int32 * 1)(256), 1)
    codes: list[int] = []

    def hear(*_: object) -> int:
        ref, error = Ref(), Error()
        functions = library.functions
        codes.append(functions.djinn_reconnect(client, c_uint64(0), byref(error)))
        codes.append(functions.djinn_ref_put(client, b"x", c_size_t(1), byref(ref), byref(error)))
        return 1

    library(
        *("djinn_generator_generate", generator, byref(prompt), c_size_t(1), None),
        *(OnToken(hear), None, None),
    )
    assert codes == [304, 304]
    library.functions.djinn_generator_close(generator)


def test_a_closed_encoder_gives_its_model_back(
    library: Library, client: ctypes.c_void_p, daemon: Daemon, minilm: Path
) -> None:
    def leases() -> int:
        return sum(model["leases"] for model in daemon.observer.models())

    before = leases()
    encoder = ctypes.c_void_p()
    library("djinn_encoder_open", client, str(minilm).encode(), byref(encoder))
    assert leases() == before + 1
    library.functions.djinn_encoder_close(encoder)
    assert leases() == before
