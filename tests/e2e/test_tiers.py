# SPDX-License-Identifier: Apache-2.0
"""Models that are moved to disk come back with the next run, and nobody sees a difference but in
time: the same tokens, the same ids."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import Ended, ctl, wait_until_hashed
from conversation import talk_to
from private_daemon import Daemon, loaders_of, no_load_goes_on, running, stopped, wait_until
from safetensors.numpy import save_file
from systemd_double import Systemd, write_config

PROMPT = [256, *b"The kernel "]
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "stop_tokens": []}
MIB = 1 << 20
PROMPT_TOKENS = 9


@pytest.fixture
def host() -> Iterator[Daemon]:
    with running() as one:
        yield one


def tokens_of(generator: djinn.Generator, **options: Any) -> list[int]:
    (row,) = generator.generate([PROMPT], **(GREEDY | options)).tokens
    return list(row)


def model_of(host: Daemon) -> dict[str, Any]:
    (model,) = ctl(host, "ps", "-j").items()
    return model


def evict(host: Daemon, *words: str) -> Ended:
    return ctl(host, "evict", "--force", "--all", *words)


def test_a_generation_after_an_eviction_says_the_same(host: Daemon, byte_model: Path) -> None:
    with host.connect("reader") as session:
        generator = djinn.Generator(session, byte_model)
        expected = tokens_of(generator)
        wait_until_hashed(host)
        for _ in range(3):
            wait_until(lambda: evict(host).code == 0, "nothing runs any more")
            assert model_of(host)["state"] == "disk"
            assert host.status()["memory_models_bytes"] == 0
            assert tokens_of(generator) == expected
            assert model_of(host)["state"] == "resident"


def test_a_conversation_goes_on_where_it_was_before_each_eviction(
    host: Daemon, byte_model: Path
) -> None:
    """Its sequence group stays, and what it says next needs the weights."""
    with (
        talk_to(host, byte_model, "undisturbed") as whole,
        talk_to(host, byte_model, "evicted") as talk,
    ):
        wait_until_hashed(host)
        for tokens in (PROMPT_TOKENS, 1, 1, 1):
            expected = whole.step(tokens)
            wait_until(lambda: evict(host).code == 0, "nothing runs any more")
            assert model_of(host)["state"] == "disk"
            assert talk.step(tokens) == expected


def test_a_model_in_use_is_not_evicted_without_force(host: Daemon, byte_model: Path) -> None:
    with host.connect("reader") as session:
        djinn.Generator(session, byte_model)
        wait_until_hashed(host)
        refused = ctl(host, "evict", model_of(host)["id"][:6])
        assert refused.code == 6
        assert "in use" in refused.err


def test_a_run_that_waits_for_its_model_can_be_cancelled(host: Daemon, byte_model: Path) -> None:
    with host.connect("reader") as session:
        generator = djinn.Generator(session, byte_model)
        expected = tokens_of(generator)
        wait_until_hashed(host)
        assert evict(host).code == 0
        (mine,) = [i for i in ctl(host, "sessions", "-j").items() if i["name"] == "reader"]
        with ThreadPoolExecutor() as pool, no_load_goes_on(host):
            run = pool.submit(tokens_of, generator)
            wait_until(lambda: ctl(host, "cancel", mine["id"]).code == 0, "it is in flight")
            with pytest.raises(djinn.Error, match="given up") as told:
                run.result(60)
            assert told.value.code == "cancelled"
        assert tokens_of(generator) == expected


def test_a_worker_that_dies_beside_a_model_on_disk_loses_nothing(
    host: Daemon, byte_model: Path
) -> None:
    with host.connect("reader") as session:
        generator = djinn.Generator(session, byte_model)
        expected = tokens_of(generator)
        wait_until_hashed(host)
        assert evict(host).code == 0
        host.kill_worker()
        assert model_of(host)["state"] == "disk"
        assert tokens_of(generator) == expected


def test_a_model_whose_file_was_changed_is_an_error_of_the_run_alone(
    host: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(byte_model, copy)
    with host.connect("reader") as session:
        generator = djinn.Generator(session, copy)
        tokens_of(generator)
        wait_until_hashed(host)
        assert evict(host).code == 0
        (file,) = copy.glob("*.safetensors")
        with file.open("r+b") as weights:
            weights.seek(-1, os.SEEK_END)
            last = weights.read(1)
            weights.seek(-1, os.SEEK_END)
            weights.write(bytes([last[0] ^ 1]))
        for _ in range(2):
            with pytest.raises(djinn.Error, match="changed since"):
                tokens_of(generator)
        assert model_of(host)["state"] == "failed"
        with host.connect("other") as other:
            assert len(tokens_of(djinn.Generator(other, byte_model))) == GREEDY["max_new_tokens"]


def take_turns(host: Daemon, copies: list[Path]) -> tuple[list[list[int]], int, int]:
    """What two sessions say in turns, how often a model was on disk after that, and the bytes that
    all of it takes."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(host.connect(copy.name)) for copy in copies]
        generators = [
            djinn.Generator(session, copy) for session, copy in zip(sessions, copies, strict=True)
        ]
        wait_until_hashed(host)
        said = []
        on_disk = 0
        for generator in generators * 3:
            said.append(tokens_of(generator))
            states = [model["state"] for model in ctl(host, "ps", "-j").items()]
            on_disk += states.count("disk")
        return said, on_disk, host.status()["memory_granted_bytes"]


def test_two_models_take_turns_where_one_has_room(byte_model: Path, tmp_path: Path) -> None:
    """No run fails while what runs nothing could give way."""
    copies = [tmp_path / name for name in ("one", "two")]
    for copy in copies:
        shutil.copytree(byte_model, copy)
    with running() as host:
        expected, on_disk, needed = take_turns(host, copies)
        assert on_disk == 0
    with running("--memory", str(needed - MIB)) as host:
        said, on_disk, _ = take_turns(host, copies)
        assert said == expected
        assert on_disk > 0


def test_dry_run_moves_nothing(host: Daemon, byte_model: Path) -> None:
    assert ctl(host, "load", "--no-pin", str(byte_model)).code == 0
    wait_until_hashed(host)
    (listed,) = ctl(host, "evict", "--all", "--dry-run", "-j").items()
    assert model_of(host)["state"] == "resident"
    (moved,) = ctl(host, "evict", "--all", "-j").items()
    assert (moved["id"], moved["to"]) == (listed["id"], "disk")
    assert ctl(host, "evict", "--all", "-j").items() == []


def test_an_eviction_that_moves_nothing_says_so(host: Daemon, byte_model: Path) -> None:
    assert ctl(host, "load", str(byte_model)).code == 0
    wait_until_hashed(host)
    ended = ctl(host, "evict", "--all")
    assert (ended.code, ended.out) == (0, b"")
    assert "no model is moved: what is pinned, in use," in ended.err
    assert ctl(host, "-q", "evict", "--all").err == ctl(host, "evict", "--all", "-j").err == ""
    stays = ctl(host, "evict", "bytes").err
    assert f"Model bytes ({model_of(host)['id']}) stays" in stays


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_dry_run_says_of_each_model_what_djinnd_would(
    host: Daemon, byte_model: Path, force: list[str]
) -> None:
    assert ctl(host, "load", str(byte_model)).code == 0
    wait_until_hashed(host)
    (pinned,) = ctl(host, "ps", "-j").items()
    dry = ctl(host, "evict", pinned["id"], "--dry-run", "-j", *force)
    assert ctl(host, "ps", "-j").items() == [pinned]
    assert ("is pinned" in dry.err) == (not force)
    every = ctl(host, "evict", "--all", "--dry-run", "-j", *force).items()
    assert every == (json.loads(dry.out)["items"] if force else [])
    assert dry.code == ctl(host, "evict", pinned["id"], *force).code == (0 if force else 6)


def test_a_model_is_unloaded_when_its_time_is_over(host: Daemon, byte_model: Path) -> None:
    assert ctl(host, "load", "--keep-alive=1h", str(byte_model)).code == 0
    model = model_of(host)
    assert (model["until"], model["keep_alive_seconds"], model["pinned"]) == ("expiry", 3600, False)
    assert model["expires"] is not None
    assert ctl(host, "load", "--keep-alive=0", str(byte_model)).code == 0
    wait_until(lambda: ctl(host, "ps", "-j").items() == [], "it is gone")


def test_a_client_says_how_long_its_model_stays(host: Daemon, byte_model: Path) -> None:
    with host.connect("brief") as session:
        session.load(byte_model, keep_alive=math.inf)
    wait_until(lambda: model_of(host)["until"] == "pressure", "nobody holds it")
    with host.connect("brief") as session:
        session.load(byte_model, keep_alive=0)
        assert model_of(host)["until"] == "close"
        for wrong in (-1.0, math.nan):
            with pytest.raises(ValueError, match="0 seconds or more"):
                session.load(byte_model, keep_alive=wrong)
    wait_until(lambda: ctl(host, "ps", "-j").items() == [], "it is gone")


# --- what gives way later


def two_models(directory: Path) -> list[Path]:
    """Of which half a limit of 160 MiB holds one."""
    paths = [directory / f"{name}.safetensors" for name in "ab"]
    for value, path in enumerate(paths):
        save_file({"w": np.full(96 * MIB, value, np.uint8)}, path)
    return paths


def test_a_model_that_is_in_use_gives_way_once_it_is_hashed(tmp_path: Path) -> None:
    """Until then it could not come back to the session that holds it."""
    first, second = two_models(tmp_path)
    with (
        running("--memory", str(160 * MIB)) as host,
        host.connect("one") as one,
        host.connect("two") as two,
    ):
        wait_until(lambda: len(loaders_of(host)) == 1, "a loader waits")
        hasher = loaders_of(host)
        held = one.load(first)
        with stopped(hasher):
            assert model_of(host)["sha256"] is None
            with pytest.raises(djinn.Error, match="or loaded just now, cannot"):
                two.load(second)
            ended = ctl(host, "evict", "--force", held.id)
            assert (ended.code, "not hashed yet" in ended.err, "files" in ended.err) == (
                6,
                True,
                False,
            )
        wait_until_hashed(host)
        loaded = two.load(second)
        states = {model["id"]: model["state"] for model in ctl(host, "ps", "-j").items()}
        assert states == {held.id: "disk", loaded.id: "resident"}


def test_a_model_whose_run_has_ended_gives_way_without_anybody_asking(
    systemd: Systemd, byte_model: Path
) -> None:
    write_config(
        systemd.directory,
        'memory.limit = "512MiB"\nmemory.evict_idle_above = "1%"\nmemory.evict_all_above = "2%"\n',
    )
    systemd.start("--root", str(systemd.directory), "--threads", "1")
    systemd.hear("READY=1")
    with systemd.connect() as session:
        generator = djinn.Generator(session, byte_model)
        stream = generator.stream([PROMPT], max_new_tokens=400, stop_tokens=[])
        next(stream)
        assert len(list(stream)) == 399
        wait_until(
            lambda: ctl(systemd, "ps", "-j").items()[0]["state"] == "disk", "it has moved down"
        )
