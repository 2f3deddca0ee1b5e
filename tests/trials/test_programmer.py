# SPDX-License-Identifier: Apache-2.0
"""Programs in C and C++ as their programmer builds them: against what is installed, by pkg-config
or CMake, without a look at this tree. A number in a test's name is that of the stumble."""

import os
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import djinn
import numpy as np
import pytest
from private_daemon import BIN, Daemon, stopped
from trial import HERE

SOURCES = HERE / "programmer"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
IDS = [101, 7592, 2088, 1012, 102]

Build = Callable[[str], Path]


def said(*command: str | Path, **options: str) -> str:
    environment = {**os.environ, **options}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client library and its headers are, after `cmake --install`."""
    prefix = tmp_path_factory.mktemp("installed")
    said("cmake", "--install", BIN.parent, "--prefix", prefix, "--component", "client")
    assert not (prefix / "bin").exists()
    return prefix


@pytest.fixture(scope="module")
def build(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """By the compiler and pkg-config, as libdjinn-client(3) has it; each once."""
    place = tmp_path_factory.mktemp("programs")

    @cache
    def by_pkg_config(source: str) -> Path:
        path = str(next(installed.glob("lib*/**/pkgconfig")))
        prefix = f"--define-variable=prefix={installed}"
        flags = ("pkg-config", prefix, "--cflags", "--libs", "djinn-client")
        found = said(*flags, PKG_CONFIG_PATH=path).split()
        compiler = ("c++", "-std=c++20") if source.endswith(".cpp") else ("cc",)
        program = place / Path(source).stem
        library = next(one for one in found if one.startswith("-L")).removeprefix("-L")
        run_path = f"-Wl,-rpath,{library}"
        said(*compiler, *STRICT, SOURCES / source, "-o", program, *found, run_path)
        return program

    return by_pkg_config


def run(daemon: Daemon, *command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DJINN_HOST": daemon.host}
    return subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=60
    )


def test_what_was_built_is_compiled_against_without_an_installation(tmp_path: Path) -> None:
    """As examples/README.md has it for who works in a clone."""
    path = str(BIN.parent / "lib" / "pkgconfig")
    flags = said("pkg-config", "--cflags", "--libs", "djinn-client", PKG_CONFIG_PATH=path).split()
    program = tmp_path / "gen"
    said("cc", "-std=c11", *STRICT, SOURCES / "gen.c", *flags, "-o", program)
    linked = said("ldd", program)
    assert f"libdjinn-client.so.1 => {BIN.parent}/lib/" in linked, linked


def test_c3_one_name_is_found_by_pkg_config_and_by_cmake(
    daemon: Daemon,
    session: djinn.Session,
    byte_model: Path,
    minilm: Path,
    build: Build,
    installed: Path,
    tmp_path: Path,
) -> None:
    said("cmake", "-S", SOURCES, "-B", tmp_path / "cmake", f"-DCMAKE_PREFIX_PATH={installed}")
    said("cmake", "--build", tmp_path / "cmake")
    prompt = "The kernel "
    expected = djinn.Generator(session, byte_model).generate([[256, *prompt.encode()]])
    text = bytes(token for token in expected.tokens[0] if token < 256).decode()
    for program in (build("gen.c"), tmp_path / "cmake/gen"):
        told = run(daemon, program, byte_model, text=prompt)
        assert (told.returncode, told.stdout, told.stderr) == (0, text, "")
    row = djinn.Encoder(session, minilm).embed(np.array([IDS]))[0]
    for program in (build("emb.cpp"), tmp_path / "cmake/emb"):
        told = run(daemon, program, minilm, *map(str, IDS))
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout.split() == [f"{number:.6f}" for number in row[:4]]


@pytest.mark.parametrize("wrong", [999_999, -1])
def test_c7_an_id_that_is_no_token_is_refused_by_its_number(
    daemon: Daemon, minilm: Path, build: Build, wrong: int
) -> None:
    told = run(daemon, build("emb.cpp"), minilm, "101", str(wrong), "102")
    assert (told.returncode, told.stdout) == (1, "")
    assert f"Token {wrong} is not in the vocabulary of 30522" in told.stderr
    assert "aten::" not in told.stderr


def test_c9_a_signals_handler_ends_a_generation_and_the_client_goes_on(
    daemon: Daemon, byte_model: Path, build: Build
) -> None:
    program = subprocess.Popen(
        [build("cancel.c"), byte_model],
        env={**os.environ, "DJINN_HOST": daemon.host},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "it talks\n"
    with stopped([daemon.worker()["pid"]]):  # it is in its call for as long
        program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=60)
    assert out.splitlines() == ["cancelled after some", "it talks", "ok after 3 tokens"]
    assert program.returncode == 0
