# SPDX-License-Identifier: Apache-2.0
"""Models on a file system whose server does not answer: only who uses it waits. What djinnd does
with one descriptor that does not close is in deferred_close_test.cc; here a loader has one, too."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from command_line import ctl, wait_until_hashed
from mute_files import MuteFiles, mounted, require_fuse
from private_daemon import DEADLINE_S, Daemon, running, wait_until
from safetensors.torch import save_file

LARGE_BYTES = 2 << 20  # of which no readahead brings the second half with the header
RETURNS = 4  # of one user's models at a time
FIRST_VALUE = f"""srg 1 "first"
weight %w "w" : float32[{LARGE_BYTES // 4}]
%v = aten::slice.Tensor(%w, 0, 0, 1, 1)
%y = aten::add.Tensor(%v, %v)
output %y
"""


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """What the file system shows."""
    (tmp_path / "shown").mkdir()
    save_file({"w": torch.ones(1000)}, tmp_path / "shown" / "model.safetensors")
    return tmp_path / "shown"


@pytest.fixture
def files(shown: Path, mount_point: Path) -> Iterator[MuteFiles]:
    require_fuse("a file that does not answer")
    with mounted(mount_point, shown) as server:
        yield server


@pytest.fixture
def large(shown: Path, mount_point: Path) -> Path:
    save_file({"w": torch.ones(LARGE_BYTES // 4)}, shown / "large.safetensors")
    return mount_point / "large.safetensors"


def test_files_that_do_not_close_hold_up_nobody(
    daemon: Daemon, files: MuteFiles, mount_point: Path, byte_model: Path
) -> None:
    model = mount_point / "model.safetensors"
    with daemon.connect("first") as first, daemon.connect("another") as another:
        mute = first.load(model)
        files.mute()
        again = another.load(model)
        assert again.was_resident
        # Neither the loader that looked which model that is reads the next one, nor a loader or a
        # worker that began with a copy of all that djinnd has open.
        for _ in range(3):
            loaded = ctl(daemon, "load", str(byte_model)).text()
            assert ctl(daemon, "unload", loaded).code == 0
        daemon.kill_worker()
        for one in (mute, again):
            one.close()
        another.unload(mute)
        wait_until(lambda: daemon.status()["descriptors_closing"] > 0, "djinnd closes the file")
        assert ctl(daemon, "status").code == 0
        files.answer()
        wait_until(lambda: daemon.status()["descriptors_closing"] == 0, "all are closed")
        assert not first.load(model).was_resident


@pytest.mark.parametrize("ends", [True, False], ids=["loader_ends", "loader_does_not_end"])
@pytest.mark.parametrize("unloads", [True, False], ids=["unload", "evict"])
def test_files_that_cannot_be_read_keep_no_model_that_they_are_compared_with(
    files: MuteFiles, large: Path, shown: Path, unloads: bool, ends: bool
) -> None:
    with (
        running() as daemon,
        daemon.connect("first") as first,
        daemon.connect("another") as another,
        ThreadPoolExecutor(1) as pool,
    ):
        model = first.load(large)
        wait_until_hashed(daemon)
        files.fall_silent()
        if not ends:
            files.mute()
        opening = pool.submit(another.load, large)
        try:
            wait_until((shown / "asked").exists, "its files are being compared")
            assert daemon.status()["compared_opens"] == 1
            if unloads:
                model.close()
                first.unload(model)
            else:
                assert ctl(daemon, "evict", "--force", "--all").code == 0
            # A loader that does not end has them still, and they count; the next one has its own.
            held = LARGE_BYTES * (1 if ends else 2)
            wait_until(lambda: daemon.status()["memory_models_bytes"] == held, "they count")
        finally:
            files.answer()
        own = opening.result(DEADLINE_S)
        assert own.id != model.id
        assert not own.was_resident
        wait_until(
            lambda: daemon.status()["memory_models_bytes"] == LARGE_BYTES, "the loader has ended"
        )


def test_a_loader_that_has_compared_has_the_model_in_its_account_until_it_is_dead(
    files: MuteFiles, large: Path
) -> None:
    with (
        running() as daemon,
        daemon.connect("first") as first,
        daemon.connect("another") as another,
    ):
        model = first.load(large)
        wait_until_hashed(daemon)
        files.mute()
        try:
            same = another.load(large)
            assert same.id == model.id
            assert daemon.status()["compared_opens"] == 1
            for one in (model, same):
                one.close()
            first.unload(model)
            status = daemon.status()
            assert status["models"] == 0
            assert status["memory_models_bytes"] == LARGE_BYTES, "a killed loader has it still"
        finally:
            files.answer()
        wait_until(lambda: daemon.status()["memory_models_bytes"] == 0, "the loader has ended")


def states(daemon: Daemon) -> dict[str, str]:
    return {model["id"]: model["state"] for model in ctl(daemon, "ps", "-j").items()}


def test_of_a_users_models_that_come_back_a_fifth_waits_for_one_of_four(
    files: MuteFiles, shown: Path, mount_point: Path, tmp_path: Path
) -> None:
    mute = [mount_point / f"large-{number}.safetensors" for number in range(RETURNS)]
    for number, path in enumerate(mute):
        weights = torch.full((LARGE_BYTES // 4,), float(number))
        save_file({"w": weights}, shown / path.name)
    fifth, fresh = tmp_path / "fifth.safetensors", tmp_path / "fresh.safetensors"
    save_file({"w": torch.full((LARGE_BYTES // 4,), float(RETURNS))}, fifth)
    save_file({"w": torch.ones(6)}, fresh)
    with (
        running() as daemon,
        ExitStack() as stack,
        ThreadPoolExecutor(RETURNS + 1) as pool,
    ):
        held = []
        for path in (*mute, fifth):
            session = stack.enter_context(daemon.connect(path.name))
            held.append((session, session.load(path)))
        wait_until_hashed(daemon)
        assert ctl(daemon, "evict", "--force", "--all").code == 0
        for path in mute:
            path.open("rb").close()  # the kernel forgets its pages
        files.fall_silent()
        runs = []
        try:
            for session, model in held:
                runs.append(pool.submit(session.run_once, FIRST_VALUE, model))
                wait_until(lambda id=model.id: states(daemon)[id] == "loading", "it comes back")
            # What is read first waits for none of those, and takes all that the fifth would.
            with daemon.connect("another") as another:
                another.load(fresh)
            assert set(states(daemon).values()) == {"loading", "resident"}
            assert states(daemon)[held[-1][1].id] == "loading"
            assert not any(run.done() for run in runs)
        finally:
            files.answer()
        values = [float(run.result(DEADLINE_S)["y"][0]) for run in runs]
        assert values == [2.0 * number for number in range(RETURNS + 1)]
