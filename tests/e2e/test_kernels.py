# SPDX-License-Identifier: Apache-2.0
"""What products of many rows give by our kernels and by the library's: measured once a host, kept,
told to all workers, and obeyed by none of them.

Nobody here judges who was faster."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import BIN, Daemon, children_named, running, wait_until
from safetensors.torch import save_file

MEASURED = ("--kernels", "measured")
DTYPES = ("float32", "bfloat16", "float16")
ROWS = 64


def graph(rows: int, numerics: str) -> str:
    return (
        f'srg 1 "product" numerics "{numerics}"\nstorage weight "w"\n'
        f"view %w of $0 : float32[300, 600]\ninput %x : float32[{rows}, 600]\n"
        "%y = aten::linear(%x, %w)\noutput %y\n"
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "djinn"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.randn(300, 600)}, path)
    return path


def kernels_of(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def are_told() -> bool:
        found[:] = ctl(daemon, "devices", "--kernels", "-j").items()
        return bool(found)

    wait_until(are_told, "a worker is warm")
    return found


def kept(cache: Path) -> list[Path]:
    """What is whole: one that is being written has a name of its own."""
    return [one for one in cache.glob("kernels-*") if "." not in one.name]


def measured_table(cache: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The file of a host that has measured, and what djinnctl said of it."""
    with running(*MEASURED) as daemon:
        told = kernels_of(daemon)
        wait_until(lambda: len(kept(cache)) == 1, "the table is kept")
    (path,) = kept(cache)
    return path, told


def words_of(path: Path) -> list[str]:
    return path.read_text().splitlines()[-1].split()


def write_words(path: Path, words: list[str]) -> None:
    lines = path.read_text().splitlines()[:-1]
    path.write_text("\n".join([*lines, " ".join(words)]) + "\n")


def test_a_table_is_measured_once_and_told_of_each_kind_of_product(cache: Path) -> None:
    _, told = measured_table(cache)
    kinds = [(one["dtype"], one["weights"], one["rows"]) for one in told]
    layouts = (("[N, K]", "few"), ("[N, K]", "many"), ("[K, N]", "many"))
    assert kinds == [(dtype, *layout) for dtype in DTYPES for layout in layouts]
    with running(*MEASURED) as daemon:
        assert kernels_of(daemon) == told
        assert "measured anew" not in daemon.log.read_text()


def product(session: djinn.Session, path: Path, x: torch.Tensor, numerics: str) -> bytes:
    program = session.define(graph(len(x), numerics), session.load(path))
    return np.array(program(x=x.numpy())["y"]).tobytes()


def tables_given(daemon: Daemon) -> list[str]:
    """To the workers that run."""
    tables = []
    for worker in children_named(daemon.process.pid, "djinn-worker"):
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):  # it has ended
            words = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
            tables.append(words[words.index("--kernels") + 1])
    return tables


def test_all_workers_are_given_the_table_that_is_there_and_none_computes_otherwise(
    cache: Path, weights: Path
) -> None:
    path, _ = measured_table(cache)
    x = torch.randn(ROWS, 600)
    results = set()
    for rates in ("2000/1000", "1000/2000"):
        write_words(path, [rates if "/" in word else word for word in words_of(path)])
        with running(*MEASURED) as daemon:
            told = kernels_of(daemon)
            own, library = (int(rate) * 10**6 for rate in rates.split("/"))
            many = [one for one in told if one["rows"] == "many"]
            assert {one["own_flops_per_second"] for one in many} == {own}
            assert {one["library_flops_per_second"] for one in many} == {library}
            with daemon.connect("kernels") as session:
                made = product(session, weights, x, "fast")
                # Each row is as it is among others, of more than a token step has.
                fewer = product(session, weights, x[:40], "fast")
                assert made[: len(fewer)] == fewer
                daemon.kill_worker()
                assert product(session, weights, x, "fast") == made
            results.add(made)
            wait_until(lambda: len(tables_given(daemon)) == 2, "there is a spare worker")
            assert set(tables_given(daemon)) == {" ".join(words_of(path))}
    assert len(results) == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def lie(path: Path) -> None:
    write_words(path, [word.replace("/", "=") for word in words_of(path)])


def move_to_another_host(path: Path) -> None:
    text = path.read_text()
    assert "\ncpu " in text
    path.write_text(text.replace("\ncpu ", "\ncpu Not ", 1))


@pytest.mark.parametrize("damage", [cut, lie, move_to_another_host, Path.unlink])
def test_a_table_that_cannot_be_of_this_host_is_measured_anew(
    cache: Path, damage: Callable[[Path], None]
) -> None:
    path, _ = measured_table(cache)
    damage(path)
    before = path.read_text() if path.exists() else ""
    with running(*MEASURED) as daemon:
        told = kernels_of(daemon)
        wait_until(lambda: path.exists() and path.read_text() != before, "a table is kept again")
        assert ("measured anew" in daemon.log.read_text()) == bool(before)
    with running(*MEASURED) as daemon:
        assert kernels_of(daemon) == told
        assert "measured anew" not in daemon.log.read_text()


def least_worker(directory: Path) -> Path:
    """Its processes have fewer instructions than djinnd's processor, as where the kernel gives
    tiles to one process and not to another."""
    worker = directory / "worker"
    worker.write_text(
        "#!/bin/sh\nfor word; do\n  shift\n"
        '  if [ "$last" = --isa ]; then word=base; fi\n'
        '  set -- "$@" "$word"\n  last=$word\ndone\n'
        f'exec {BIN / "djinn-worker"} "$@"\n'
    )
    worker.chmod(0o755)
    return worker


def test_a_table_is_of_the_instructions_that_workers_have(cache: Path, tmp_path: Path) -> None:
    path, _ = measured_table(cache)
    before = path.read_bytes()
    options = (*MEASURED, "--worker", str(least_worker(tmp_path)))
    with running(*options) as daemon:
        wait_until(lambda: path.read_bytes() != before, "a table of theirs is kept")
        assert ctl(daemon, "devices", "-j").items()[0]["isa"] == "base"
        told = kernels_of(daemon)
        with daemon.connect("kernels"):
            daemon.kill_worker()
        wait_until(lambda: len(tables_given(daemon)) == 2, "there is a spare worker")
        assert " ".join(words_of(path)) in tables_given(daemon)
    measured = path.read_bytes()
    with running(*options) as daemon:
        assert kernels_of(daemon) == told, "it is measured once a host"
        wait_until(lambda: len(tables_given(daemon)) == 1, "there is a worker")
        assert tables_given(daemon) == [" ".join(words_of(path))]
    assert path.read_bytes() == measured and kept(cache) == [path]


def test_the_standard_is_not_measured(cache: Path) -> None:
    with running("--kernels", "standard") as daemon:
        told = kernels_of(daemon)
    assert all(one[rate] is None for one in told for rate in one if rate.endswith("_per_second"))
    assert kept(cache) == []
