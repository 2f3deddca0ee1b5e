# SPDX-License-Identifier: Apache-2.0
"""Runs that may wait for so long only: who cannot begin in time is told at once, and has changed
nothing."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl
from long_runs import computing, in_time
from private_daemon import Daemon, running, wait_until
from test_c_client import DOUBLE, Failure, Input, Library, Symbol, connected

QUEUE_FULL = 303


@pytest.fixture
def fifo() -> Iterator[Daemon]:
    with running("--policy", "fifo") as daemon:
        yield daemon


def test_who_would_wait_too_long_is_told_at_once(fifo: Daemon) -> None:
    with fifo.connect("short", begin_within=0.05) as session, computing(fifo) as goes_on:
        with pytest.raises(djinn.LimitError, match=r"would begin in about \d+ ms") as told:
            session.run_once(DOUBLE, x=np.ones(3, np.float32))
        assert goes_on(), "it is told while the other run computes"
        assert (told.value.code, told.value.number) == ("queue_full", QUEUE_FULL)
        with fifo.connect("patient") as patient:
            assert patient.run_once(DOUBLE, x=np.ones(3, np.float32))["y"].tolist() == [2.0] * 3
        wait_until(lambda: fifo.worker()["refused"] == 1, "it is counted")
        doubled = in_time(lambda: session.run_once(DOUBLE, x=np.ones(3, np.float32))["y"])
        assert doubled.tolist() == [2.0] * 3


def test_a_generation_that_was_refused_is_as_if_it_had_not_been(
    fifo: Daemon, byte_model: Path
) -> None:
    def generate(session: djinn.Session) -> list[int]:
        generator = djinn.Generator(session, byte_model)
        return generator.generate([[256, *b"The "]], max_new_tokens=20).tokens[0]

    with fifo.connect("short", begin_within=0.05) as session, fifo.connect("patient") as patient:
        expected = generate(patient)
        with computing(fifo) as goes_on:
            with pytest.raises(djinn.LimitError):
                generate(session)
            assert goes_on()
        assert in_time(lambda: generate(session)) == expected


def test_under_fair_a_long_run_is_in_nobodys_way(daemon: Daemon) -> None:
    with daemon.connect("short", begin_within=60) as session, computing(daemon) as goes_on:
        session.run_once(DOUBLE, x=np.ones(3, np.float32))
        assert goes_on()


def test_a_program_in_c_says_how_long_it_may_wait(fifo: Daemon) -> None:
    library = Library()
    with connected(fifo, library) as client, computing(fifo) as goes_on:
        program = ctypes.c_void_p()
        define = (DOUBLE.encode(), ctypes.c_uint64(0), ctypes.byref(program))
        library("djinn_program_define", client, *define)

        def run() -> None:
            values = np.ones(3, np.float32)
            given = Input(b"x", values.ctypes.data, values.nbytes)
            n = Symbol(b"n", 3)
            library(
                "djinn_program_run",
                program,
                ctypes.byref(n),
                ctypes.c_size_t(1),
                ctypes.byref(given),
                ctypes.c_size_t(1),
                None,
                ctypes.c_size_t(0),
            )

        library("djinn_set_begin_within", client, ctypes.c_uint64(50))
        with pytest.raises(Failure) as told:
            run()
        assert told.value.code == QUEUE_FULL
        assert goes_on()
        library("djinn_set_begin_within", client, ctypes.c_uint64(0))
        run()
        library.functions.djinn_program_close(program)


def test_djinnctl_says_that_it_may_succeed_later(fifo: Daemon, byte_model: Path) -> None:
    generate = ("generate", str(byte_model), "--prompt", "The ", "--max-new-tokens", "5")
    assert ctl(fifo, *generate, "--begin-within", "60000").code == 0
    with computing(fifo):
        ended = ctl(fifo, *generate, "--begin-within", "50")
        assert (ended.code, ended.out) == (75, b"")
        assert "Submit it again later" in ended.err


def test_what_is_no_time_is_told(daemon: Daemon) -> None:
    wrong: list[Any] = [0, -1, "soon"]
    for within in wrong:
        with pytest.raises((TypeError, ValueError), match="begin_within"):
            daemon.connect("wrong", begin_within=within)
