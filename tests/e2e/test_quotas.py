# SPDX-License-Identifier: Apache-2.0
"""What one user may have in all sessions together, as sections of the configuration say."""

import grp
import os
import pwd
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, events_of
from other_user import User
from safetensors.numpy import save_file
from systemd_double import Systemd, write_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become two other users")

MIB = 1 << 20
STAGING = 4 * MIB
PIECE = np.zeros(8 * MIB, np.uint8)
BOUND = User("nobody", pwd.getpwnam("nobody").pw_uid, "nogroup", ("games",))
FREE = User("daemon", pwd.getpwnam("daemon").pw_uid, "nogroup")


@dataclass
class Served:
    """A djinnd as a service."""

    systemd: Systemd
    place: Path
    sessions: ExitStack = field(default_factory=ExitStack)

    def connect(self, user: User) -> djinn.Session:
        with user.acting():
            return self.sessions.enter_context(
                self.systemd.connect(user.name, staging_bytes=STAGING)
            )

    def start(self, text: str) -> None:
        write_config(self.place, text)
        options = ("--threads", "1", "--admin-group", "users")
        self.systemd.start("--root", str(self.place), *options)
        self.systemd.hear("READY=1")

    def reload(self, text: str) -> None:
        write_config(self.place, text)
        assert self.systemd.process is not None
        self.systemd.process.send_signal(signal.SIGHUP)
        self.systemd.hear("RELOADING=1")
        self.systemd.hear("READY=1")

    def quota_of(self, user: User) -> dict[str, Any] | None:
        with user.acting():
            quota: dict[str, Any] | None = ctl(self.systemd, "status", "-j").items()[0]["quota"]
            return quota


@pytest.fixture
def served(place: Path) -> Iterator[Served]:
    systemd = Systemd(place)
    (place / "djinnd.sock").chmod(0o666)
    one = Served(systemd, place)
    try:
        yield one
        one.sessions.close()
        assert systemd.stop() == 0
    finally:
        systemd.close()


def held(served: Served, user: User) -> int:
    quota = served.quota_of(user)
    assert quota is not None
    return int(quota["memory_bytes"])


def test_a_users_sessions_share_one_quota_of_memory_and_nobody_else_has_it(served: Served) -> None:
    served.start(f'[user.{BOUND.name}]\nmemory_quota = "64MiB"\n')
    one, two = served.connect(BOUND), served.connect(BOUND)
    other = served.connect(FREE)
    room = 64 * MIB - held(served, BOUND)
    kept = [one.put(PIECE) for _ in range(room // len(PIECE) // 2)]
    with pytest.raises(
        djinn.Error, match=r"all sessions of this user together have \S+ MiB of 64\.0 MiB"
    ) as full:
        for _ in range(room // len(PIECE) + 1):
            kept.append(two.put(PIECE))
    assert full.value.code == "quota_exceeded"
    # The other user's are not held up, and what is released may be had again.
    others = [other.put(PIECE) for _ in range(10)]
    assert served.quota_of(FREE) is None
    assert held(served, BOUND) <= 64 * MIB
    count = len(kept)
    kept.pop(0).release()
    kept.append(one.put(PIECE))
    assert (len(kept), len(others)) == (count, 10)


def test_a_session_that_is_closed_makes_room_for_the_next(served: Served) -> None:
    served.start(f'[user.{BOUND.name}]\nmemory_quota = "64MiB"\nsessions_max = 1\n')
    for _ in range(5):
        with BOUND.acting(), served.systemd.connect("next", staging_bytes=STAGING) as session:
            kept = [session.put(PIECE) for _ in range(4)]
            assert len(kept) == 4


def test_a_users_sessions_are_counted_and_djinnctls_are_not(served: Served) -> None:
    served.start(f"[user.{BOUND.name}]\nsessions_max = 2\n")
    first, _ = served.connect(BOUND), served.connect(BOUND)
    with pytest.raises(
        djinn.Error, match="has 2 sessions, and djinnd's configuration allows 2"
    ) as full:
        served.connect(BOUND)
    assert full.value.code == "limit_exceeded"
    quota = served.quota_of(BOUND)
    assert quota is not None
    assert (quota["sessions"], quota["sessions_max"], quota["memory_max_bytes"]) == (2, 2, None)
    served.connect(FREE)
    first.close()
    served.connect(BOUND)


def test_administrators_see_what_each_user_has_and_may_have(served: Served) -> None:
    served.start(f'[user.{BOUND.name}]\nmemory_quota = "64MiB"\nsessions_max = 2\n')
    served.connect(BOUND)
    served.connect(FREE)
    users = {one["owner"]: one for one in ctl(served.systemd, "status", "-j").items()[0]["users"]}
    assert {BOUND.name, FREE.name} <= users.keys()
    bound = users[BOUND.name]
    assert (bound["memory_bytes"], bound["memory_max_bytes"]) == (held(served, BOUND), 64 * MIB)
    assert (bound["sessions"], bound["sessions_max"]) == (1, 2)
    assert users[FREE.name]["memory_max_bytes"] is None
    assert (bound["models"], bound["models_max"]) == (0, 32)
    assert [BOUND.name, "1", "of", "2", "0", "of", "32"] in [
        row[:1] + row[-6:] for row in ctl(served.systemd, "status").table()
    ]
    # For others there is no such list.
    with FREE.acting():
        assert ctl(served.systemd, "status", "-j").items()[0]["users"] == []


def test_the_log_says_who_is_refused_what_and_why(served: Served) -> None:
    served.start(f'[user.{BOUND.name}]\nmemory_quota = "64MiB"\nsessions_max = 1\n')
    session = served.connect(BOUND)
    assert served.quota_of(BOUND) is not None  # and now their name is known
    with pytest.raises(
        djinn.Error, match=r"allows 1 at a time.*(user|group)\.[a-z0-9_-]+\.sessions_max"
    ):
        served.connect(BOUND)
    (refused,) = events_of(served.systemd, "session-refused")
    assert refused["text"] == f"a session of user {BOUND.name} is refused: limit_exceeded"
    assert "has 1 session, and djinnd's configuration allows 1" in refused["reason"]
    assert refused["uid"] == BOUND.uid
    kept = []
    with pytest.raises(djinn.Error, match="together have") as told:
        while True:
            kept.append(session.put(PIECE))
    (refused,) = events_of(served.systemd, "memory-refused")
    assert refused["reason"] in str(told.value)
    whom = f"memory is refused to session {session.id} of user {BOUND.name}"
    assert (refused["text"], refused["uid"]) == (whom, BOUND.uid)
    assert f"of 64.0 MiB (user.{BOUND.name}.memory_quota)" in refused["reason"]
    assert refused["reason"] in served.systemd.stderr_line(whom)


def test_a_group_binds_its_members_and_the_user_goes_before_it(served: Served) -> None:
    group = grp.getgrnam("games").gr_name
    served.start(f"[group.{group}]\nsessions_max = 1\n")
    served.connect(BOUND)
    with pytest.raises(
        djinn.Error, match=r"allows 1 at a time.*(user|group)\.[a-z0-9_-]+\.sessions_max"
    ):
        served.connect(BOUND)
    for _ in range(2):
        served.connect(FREE)  # is no member
    served.reload(f"[group.{group}]\nsessions_max = 1\n[user.{BOUND.name}]\nsessions_max = 2\n")
    served.connect(BOUND)
    with pytest.raises(djinn.Error, match="allows 2 at a time"):
        served.connect(BOUND)


def test_a_users_quota_of_pins_goes_before_everybodys(served: Served) -> None:
    path = served.place / "model.safetensors"
    save_file({"w": np.ones(25_000, dtype=np.float32)}, path)
    path.chmod(0o644)
    served.start(f'memory.pin_quota = "1KiB"\n[user.{BOUND.name}]\npin_quota = "1MiB"\n')
    bound, free = served.connect(BOUND), served.connect(FREE)
    with (
        FREE.acting(),
        pytest.raises(djinn.Error, match=r"of 1\.0 KiB that you may pin \(memory\.pin_quota\)"),
    ):
        free.load(path, pin=True)
    with BOUND.acting():
        bound.load(path, pin=True)
    quota = served.quota_of(BOUND)
    assert quota is not None
    assert (quota["pinned_bytes"] >= 100_000, quota["pinned_max_bytes"]) == (True, MIB)


def test_what_users_leave_of_the_stores_disk_is_set_and_reloads(
    served: Served, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served.place / "state").mkdir()
    monkeypatch.setenv("STATE_DIRECTORY", str(served.place / "state"))
    model = Path(shutil.copytree(byte_model, served.place / "model"))
    served.start('[store]\nkeep_free = "100%"\n')
    command = ("import", str(model), "--name", f"~{BOUND.name}/mine")
    with BOUND.acting():
        refused = ctl(served.systemd, *command)
    assert refused.code != 0
    assert "stay free of what is no administrator's (store.keep_free)" in refused.err
    assert ctl(served.systemd, "models", "-j").items() == []
    assert ctl(served.systemd, "import", str(model), "--name", "all").code == 0
    served.reload("[store]\nkeep_free = 0\n")
    with BOUND.acting():
        assert ctl(served.systemd, *command).code == 0


def test_a_reload_takes_quotas_up_and_names_those_whom_nobody_knows(served: Served) -> None:
    served.start("")
    session = served.connect(BOUND)
    kept = [session.put(PIECE) for _ in range(4)]
    served.reload(
        f'[user.{BOUND.name}]\nmemory_quota = "16MiB"\n[user.nobody-at-all]\nsessions_max = 1\n'
    )
    served.systemd.stderr_line("warning: user.nobody-at-all: there is no user nobody-at-all")
    # Who has more keeps it, and gets no more.
    with pytest.raises(djinn.Error, match=r"of 16\.0 MiB"):
        session.put(PIECE)
    assert kept[0].numpy().nbytes == PIECE.nbytes
    served.reload("")
    kept.append(session.put(PIECE))
    assert served.quota_of(BOUND) is None


def test_the_quota_is_shown_to_its_user_and_in_the_configuration(served: Served) -> None:
    served.start(f"[user.{BOUND.name}]\nsessions_max = 2\n")
    with BOUND.acting():
        table = ctl(served.systemd, "status").table()
    assert ["your", "sessions", "0", "of", "2"] in table
    shown = ctl(served.systemd, "config", "show", "--root", str(served.place))
    line = [f"user.{BOUND.name}.sessions_max", "2"]
    assert line in [cells[:2] for cells in shown.table()]


def small_model(served: Served, number: int) -> Path:
    """One that no other number shares."""
    path = served.place / f"model-{number}.safetensors"
    if not path.exists():
        save_file({"w": np.full(4, number, np.float32)}, path)
    return path


def load_until_refused(served: Served, session: djinn.Session, first: int) -> list[djinn.Model]:
    kept: list[djinn.Model] = []
    with pytest.raises(djinn.Error, match=r"This user keeps \d+ models") as full:
        while True:
            kept.append(session.load(small_model(served, first + len(kept))))
    assert full.value.code == "limit_exceeded"
    return kept


def test_one_user_who_holds_many_models_leaves_others_their_places(served: Served) -> None:
    """There are 256 places, and no user keeps more than 32 of them, in whatever sessions."""
    served.start("")
    greedy, again = served.connect(BOUND), served.connect(BOUND)
    kept = load_until_refused(served, greedy, 0)
    assert len(kept) == 32
    with pytest.raises(djinn.Error, match=r"32 at a time.*a larger models_max"):
        again.load(small_model(served, 999))
    again.load(small_model(served, 0))  # of what the user keeps another session takes no place
    other = served.connect(FREE)
    other.load(small_model(served, 1000))
    with pytest.raises(djinn.Error, match="This user keeps 32 models"):
        greedy.load(small_model(served, 1000))  # which another user keeps
    kept.pop().close()
    kept.append(greedy.load(small_model(served, 1001)))


def test_pinned_models_take_places_until_they_are_unpinned(served: Served) -> None:
    served.start(f"[user.{BOUND.name}]\nmodels_max = 3\n")
    session = served.connect(BOUND)
    for number in range(3):
        session.load(small_model(served, number), pin=True)
    session.close()
    with pytest.raises(djinn.Error, match=rf"user\.{BOUND.name}\.models_max"):
        served.connect(BOUND).load(small_model(served, 3))
    quota = served.quota_of(BOUND)
    assert quota is not None
    assert (quota["models"], quota["models_max"]) == (3, 3)
    with BOUND.acting():
        pinned = ctl(served.systemd, "ps", "-j").items()[0]["id"]
        assert ctl(served.systemd, "unpin", pinned).code == 0
    served.connect(BOUND).load(small_model(served, 3))


def test_a_models_quota_above_the_share_is_the_administrators_to_give(served: Served) -> None:
    served.start(f"[user.{BOUND.name}]\nmodels_max = 40\n")
    assert len(load_until_refused(served, served.connect(BOUND), 0)) == 40


def test_who_owns_most_idle_models_loses_them_first(served: Served) -> None:
    """Many small loads of one user push out none of another's that are warm."""
    served.start("")
    other, greedy = served.connect(FREE), served.connect(BOUND)
    other.load(small_model(served, 1000)).close()
    for number in range(256):
        greedy.load(small_model(served, number)).close()
    models = ctl(served.systemd, "ps", "-j").items()
    owners = [one["owner"] for one in models]
    assert len(owners) <= 256
    assert FREE.name in owners
