# SPDX-License-Identifier: Apache-2.0
"""Sessions of an administrator's shell, beside a djinnd as a service that somebody's notebook uses.
What needs systemd itself is in tests/boot. A number in a file's or test's name is that of the
stumble: see README.md."""

import getpass
import grp
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import transcript
from command_line import ctl
from private_daemon import BIN, ROOT, Daemon, running, wait_until
from trial import HERE

SESSIONS = sorted((HERE / "administrator").glob("*.session"))


@dataclass
class Desk:
    """Where an administrator sits: the files and the variables that are there."""

    daemon: Daemon
    directory: Path

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "DJINN_HOST": self.daemon.host,
            "DJINND": str(self.daemon.process.pid),
            "LOG": str(self.daemon.log),
            "LC_ALL": "C.UTF-8",
        }


@pytest.fixture
def desk(byte_model: Path, tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "etc/djinn").mkdir(parents=True)
    (tmp_path / "etc/djinn/djinnd.conf").touch()
    (tmp_path / "models").symlink_to(byte_model.parent)
    group = grp.getgrgid(os.getgid()).gr_name
    options = ("--root", str(tmp_path), "--memory", "1GiB")
    with running(*options, socket_group=group) as daemon:
        daemon.observer.close()  # nobody's, but it would be listed
        with daemon.connect("notebook") as notebook:
            notebook.load(byte_model)
            yield Desk(daemon, tmp_path)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
def test_a_session_goes_as_it_was_written(desk: Desk, session: Path) -> None:
    transcript.play(session, desk.directory, desk.environment())


def test_b18_each_word_of_status_is_explained(desk: Desk) -> None:
    page = (ROOT / "man/djinnctl.1.scd").read_text()
    explained = set(re.findall(r"\*([A-Za-z ]+)\*", page.split("\n# STATUS\n")[1].split("\n# ")[0]))
    quota = f"[user.{getpass.getuser()}]\nsessions_max = 9\n"
    (desk.directory / "etc/djinn/djinnd.conf").write_text(quota)
    desk.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "your pins" in ctl(desk.daemon, "status").text(), "the quota is in force")
    ctl(desk.daemon, "generate", str(ROOT / "models/bytes"), "--prompt", "x").text()
    fields, workers, users = ctl(desk.daemon, "status").text().split("\n\n")
    shown = {re.split(r"  +", line.strip())[0] for line in fields.splitlines()[1:]}
    # What ps, sessions or any program would call so.
    plain = {"version", "up", "DEVICE", "PID", "STATE"}
    for table in (workers, users):
        shown |= set(table.splitlines()[0].split())
    assert shown - plain <= explained


def test_b15_the_rules_say_what_prometheus_is_told() -> None:
    head = (ROOT / "packaging/metrics/djinnd.rules.yml").read_text().split("\ngroups:")[0]
    for word in ("scrape_configs:", "job_name: djinnd", "targets:", "djinnd-metrics.socket"):
        assert word in head
