# SPDX-License-Identifier: Apache-2.0
"""Who may keep a model in memory, for how long, and how much of it, and who sees who uses it, where
users share it."""

import json
import os
import pwd
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import Ended, ctl
from other_user import User
from private_daemon import wait_until
from safetensors.numpy import save_file
from systemd_double import Systemd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users")

SETTLED_S = 2.2  # a file that changed later than that is not shared between users
KIB = 1024
FIRST = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup")
SECOND = User("daemon", pwd.getpwnam("daemon").pw_uid, "nogroup")


@dataclass
class Served:
    """A djinnd as a service, where a user may pin 100 KiB."""

    systemd: Systemd
    sessions: ExitStack = field(default_factory=ExitStack)

    def connect(self, user: User) -> djinn.Session:
        with user.acting():
            return self.sessions.enter_context(self.systemd.connect(user.name))

    def ctl(self, user: User, *words: str) -> Ended:
        with user.acting():
            return ctl(self.systemd, *words)

    def shown(self) -> list[dict[str, Any]]:
        return ctl(self.systemd, "ps", "-j").items()


@pytest.fixture
def served(place: Path) -> Iterator[Served]:
    config = place / "etc/djinn/djinnd.conf"
    config.parent.mkdir(parents=True)
    config.write_text('memory.pin_quota = "100KiB"\nmodel.keep_alive = "10min"\n')
    systemd = Systemd(place)
    (place / "djinnd.sock").chmod(0o666)
    one = Served(systemd)
    try:
        systemd.start("--root", str(place), "--threads", "1", "--admin-group", "games")
        systemd.hear("READY=1")
        yield one
        one.sessions.close()
        assert systemd.stop() == 0
    finally:
        systemd.close()


def shared_file(place: Path, name: str, bytes_: int) -> Path:
    path = place / f"{name}.safetensors"
    save_file({"w": np.ones(bytes_ // 4, dtype=np.float32)}, path)
    path.chmod(0o644)
    if os.stat(path).st_dev >> 8 == 0:
        pytest.skip("temporary files lie on no block device; then users share none")
    wait_until(lambda: time.time() - path.stat().st_ctime > SETTLED_S, "the file has settled")
    return path


def load(user: User, session: djinn.Session, path: Path, **stay: Any) -> djinn.Model:
    with user.acting():
        return session.load(path, **stay)


def test_a_pin_belongs_to_its_user(served: Served, place: Path) -> None:
    path = shared_file(place, "shared", 40 * KIB)
    one, two = served.connect(FIRST), served.connect(SECOND)
    first = load(FIRST, one, path, pin=True)
    second = load(SECOND, two, path, pin=True)
    (item,) = served.shown()
    assert (item["owner"], item["pinned"], item["leases"]) == (FIRST.name, True, 2)
    first.close()
    second.close()
    # Its owner's pin ends, the other's stays, and is not for its owner to end.
    assert served.ctl(FIRST, "unpin", item["id"]).code == 0
    assert served.shown()[0]["pinned"]
    for words in (("unpin",), ("unload",), ("evict", "--force")):
        assert served.ctl(FIRST, *words, item["id"]).code == 5, words
    assert served.ctl(SECOND, "unpin", item["id"]).code == 0
    assert not served.shown()[0]["pinned"]
    # Administrators end all of them.
    assert served.ctl(SECOND, "pin", item["id"]).code == 0
    assert served.ctl(FIRST, "pin", item["id"]).code == 0
    assert ctl(served.systemd, "unpin", item["id"]).code == 0
    assert not served.shown()[0]["pinned"]
    assert served.ctl(FIRST, "unload", item["id"]).code == 0


def test_each_pin_that_is_set_or_ended_is_an_event_of_its_user(served: Served, place: Path) -> None:
    path = shared_file(place, "shared", 40 * KIB)
    one, two = served.connect(FIRST), served.connect(SECOND)
    model = load(FIRST, one, path)
    load(SECOND, two, path)
    assert served.ctl(FIRST, "pin", model.id).code == 0
    assert served.ctl(FIRST, "pin", model.id).code == 0, "and nothing changes"
    assert served.ctl(SECOND, "pin", model.id).code == 0
    assert served.ctl(SECOND, "unpin", model.id).code == 0
    assert ctl(served.systemd, "unpin", model.id).code == 0

    def told(ended: Ended) -> list[tuple[str, int]]:
        events = map(json.loads, filter(str.strip, ended.out.decode().split("\x1e")))
        items = [item for event in events for item in event["items"]]
        pins = [item for item in items if item["event"].endswith("pinned")]
        assert all(item["model"] == model.id for item in pins)
        return [(item["event"].removeprefix("model-"), item["uid"]) for item in pins]

    first = [("pinned", FIRST.uid), ("unpinned", FIRST.uid)]
    second = [("pinned", SECOND.uid), ("unpinned", SECOND.uid)]
    assert told(ctl(served.systemd, "events", "-j")) == [first[0], *second, first[1]]
    assert told(served.ctl(FIRST, "events", "-j")) == first
    assert told(served.ctl(SECOND, "events", "-j")) == second


def test_a_user_sees_own_uses_of_a_model_and_administrators_all(
    served: Served, place: Path
) -> None:
    path = shared_file(place, "shared", 40 * KIB)
    link = place / "link.safetensors"
    link.symlink_to(path)
    one, two = served.connect(FIRST), served.connect(SECOND)
    load(FIRST, one, path)
    load(SECOND, two, link, pin=True)

    def seen(item: dict[str, Any]) -> tuple[str, set[str], list[str]]:
        return item["path"], {each["owner"] for each in item["holders"]}, item["pinned_by"]

    (first,) = served.ctl(FIRST, "ps", "-j").items()
    (second,) = served.ctl(SECOND, "ps", "-j").items()
    (all_,) = served.shown()
    assert seen(first) == (str(path), {FIRST.name}, [])
    assert seen(second) == (str(link), {SECOND.name}, [SECOND.name])
    assert seen(all_) == (str(path), {FIRST.name, SECOND.name}, [SECOND.name])
    # How many there are is no secret.
    assert [each["leases"] for each in (first, second, all_)] == [2, 2, 2]
    assert (first["pinned"], all_["owner"]) == (True, FIRST.name)
    # Nor does a path that another gave name it.
    link.unlink()
    assert served.ctl(FIRST, "show", str(link)).code == 4
    assert served.ctl(SECOND, "show", str(link)).code == 0


def model_directory(place: Path, name: str, bytes_: int) -> Path:
    """One that djinnctl loads; what it computes nobody asks."""
    directory = place / name
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    shared_file(directory, "model", bytes_)
    return directory


def test_who_pins_what_another_holds_sees_it_and_ends_the_pin(served: Served, place: Path) -> None:
    model = model_directory(place, "shared", 40 * KIB)
    one = served.connect(FIRST)
    load(FIRST, one, model / "model.safetensors")
    assert served.ctl(SECOND, "ps", "-j").items() == []
    loaded = served.ctl(SECOND, "load", str(model)).text()
    # No session of theirs has opened it.
    (item,) = served.ctl(SECOND, "ps", "-j").items()
    assert (item["id"], item["pinned_by"]) == (loaded, [SECOND.name])
    for name in (loaded, "shared", str(model)):
        assert served.ctl(SECOND, "unpin", name).code == 0, name
        assert not served.shown()[0]["pinned"]
        assert served.ctl(SECOND, "pin", name).code == 0, name
        assert served.shown()[0]["pinned"]


@pytest.mark.parametrize("stay", [["--no-pin"], ["--keep-alive", "1h"]])
def test_a_load_that_says_otherwise_ends_the_pin_of_the_load_before(
    served: Served, place: Path, stay: list[str]
) -> None:
    model = str(model_directory(place, "shared", 40 * KIB))
    for user in (FIRST, SECOND):
        assert served.ctl(user, "load", model).code == 0
    assert served.ctl(SECOND, "load", *stay, model).code == 0
    (item,) = served.shown()
    assert item["pinned_by"] == [FIRST.name], "that of another stays"
    assert served.ctl(FIRST, "load", *stay, model).code == 0
    assert not served.shown()[0]["pinned"]
    # A program that opens it and says nothing of a pin ends none.
    assert served.ctl(FIRST, "load", model).code == 0
    load(FIRST, served.connect(FIRST), Path(model) / "model.safetensors")
    assert served.shown()[0]["pinned"]


def test_a_user_calls_a_model_as_they_opened_it_and_administrators_as_anybody_did(
    served: Served, place: Path
) -> None:
    first = model_directory(place, "first", 40 * KIB)
    second = model_directory(place, "second", 40 * KIB)  # the same bytes
    assert served.ctl(FIRST, "load", str(first)).code == 0
    assert served.ctl(SECOND, "load", str(second)).code == 0

    def names_of(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return [(item["name"], item["path"]) for item in items]

    def called(items: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(one["owner"], one["name"], one["path"]) for item in items for one in item["names"]}

    own = [("first", str(first))], [("second", str(second))]
    for user, names, others in ((FIRST, *own), (SECOND, *reversed(own))):
        items = served.ctl(user, "ps", "-j").items()
        assert names_of(items) == names
        assert called(items) == {(user.name, *names[0])}
        assert served.ctl(user, "show", names[0][0]).code == 0
        assert served.ctl(user, "show", others[0][0]).code == 4
    everybody = {(FIRST.name, *own[0][0]), (SECOND.name, *own[1][0])}
    assert called(served.shown()) == everybody
    # By a path that leads nowhere now, too.
    shutil.rmtree(second)
    for name in ("first", "second", str(first), str(second)):
        assert ctl(served.systemd, "show", name).code == 0, name
    # And so it stays.
    served.systemd.stop()
    served.systemd.start("--root", str(place), "--threads", "1", "--admin-group", "games")
    served.systemd.stderr_line("is resident again")
    assert called(served.shown()) == everybody


def test_a_user_pins_no_more_than_their_quota(served: Served, place: Path) -> None:
    paths = [shared_file(place, name, 40 * KIB) for name in "abc"]
    session = served.connect(FIRST)
    models = [load(FIRST, session, path, pin=True) for path in paths[:2]]
    with pytest.raises(djinn.Error, match="Unpin another model, or load it without a pin") as full:
        load(FIRST, session, paths[2], pin=True)
    assert full.value.code == "quota_exceeded"
    wait_until(lambda: len(served.shown()) == 2, "the third is given up")
    own = [one["id"] for one in served.shown()]
    third = load(FIRST, session, paths[2])
    (item,) = [one for one in served.shown() if not one["pinned"]]
    assert served.ctl(FIRST, "pin", item["id"]).code == 8
    # Who shares it has a quota of their own, and administrators have none.
    other = served.connect(SECOND)
    load(SECOND, other, paths[2], pin=True)
    assert all(one["pinned"] for one in served.shown())
    with pytest.raises(djinn.Error, match="Unpin another model"):
        load(SECOND, other, shared_file(place, "large", 80 * KIB), pin=True)
    with served.systemd.connect("root's", observer=True) as roots:
        for path in paths:
            roots.load(path, pin=True)
    # Room again.
    assert served.ctl(FIRST, "unpin", own[0]).code == 0
    load(FIRST, session, paths[2], pin=True)
    assert len(models) == 2 and third is not None


def test_who_shares_a_model_can_only_lengthen_its_stay(served: Served, place: Path) -> None:
    path = shared_file(place, "shared", 40 * KIB)
    one, two = served.connect(FIRST), served.connect(SECOND)

    def keeps() -> float:
        return served.shown()[0]["keep_alive_seconds"]

    load(FIRST, one, path, keep_alive=1200)
    assert keeps() == 1200
    load(SECOND, two, path, keep_alive=0)
    assert keeps() == 1200
    load(SECOND, two, path, keep_alive=3600)
    assert keeps() == 3600
    load(SECOND, two, path)  # what they asked for last holds
    assert keeps() == 3600
    load(SECOND, two, path, keep_alive=1)
    load(FIRST, one, path, keep_alive=30)  # one may shorten one's own
    assert keeps() == 30


def test_pins_and_times_outlive_a_restart(served: Served, place: Path) -> None:
    path = shared_file(place, "shared", 40 * KIB)
    one, two = served.connect(FIRST), served.connect(SECOND)
    load(FIRST, one, path, keep_alive=1200)
    load(SECOND, two, path, pin=True)
    served.sessions.close()
    served.systemd.stop()
    config = str(place)
    served.systemd.start("--root", config, "--threads", "1", "--admin-group", "games")
    served.systemd.stderr_line("is resident again")
    (item,) = served.shown()
    assert (item["pinned"], item["keep_alive_seconds"]) == (True, 1200)
    assert (item["path"], item["pinned_by"]) == (str(path), [SECOND.name])
    # Whose it is is known, too.
    assert served.ctl(FIRST, "unpin", item["id"]).code == 5
    with served.connect(SECOND) as again:
        load(SECOND, again, path)
        assert served.ctl(SECOND, "unpin", item["id"]).code == 0
    assert not served.shown()[0]["pinned"]


def test_who_shares_a_model_says_its_numerics_for_oneself_and_that_outlives_a_restart(
    served: Served, place: Path
) -> None:
    (place / "shared").mkdir()
    (place / "shared/config.json").write_text("{}")
    path = str(shared_file(place / "shared", "model", 40 * KIB).parent)

    def seen() -> list[str | None]:
        asked = [served.ctl(user, "ps", "-j") for user in (FIRST, SECOND)]
        return [one["numerics"] for ended in asked for one in ended.items()]

    for user, *words in ((FIRST, "--numerics", "fast"), (SECOND,)):
        assert served.ctl(user, "load", path, *words).code == 0
    assert seen() == ["fast", None]
    assert served.shown()[0]["numerics"] == "fast", "administrators see the owner's"
    assert served.ctl(SECOND, "load", path, "--numerics", "exact").code == 0
    assert seen() == ["fast", "exact"]
    served.systemd.stop()
    served.systemd.start("--root", str(place), "--threads", "1", "--admin-group", "games")
    served.systemd.stderr_line("is resident again")
    assert seen() == ["fast", "exact"]
    assert served.ctl(SECOND, "load", path).code == 0
    assert seen() == ["fast", "exact"]
