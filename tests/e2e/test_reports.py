# SPDX-License-Identifier: Apache-2.0
"""djinnctl diag: what a bug report needs, no more; djinnctl config show: as djinnd sees it."""

import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import djinn
import pytest
from private_daemon import BIN, Daemon, stopped

LISTS = ("status", "sessions", "ps", "devices", "mem", "programs", "version")
SECRET = "a prompt that nobody else should read"


def ctl(host: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "djinnctl"), *words],
        env={**os.environ, "DJINN_HOST": host},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


# --- diag


def test_a_report_has_every_list_as_its_verb_tells_it(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    model = ctl(daemon.host, "load", str(byte_model)).stdout.strip()
    ended = ctl(daemon.host, "diag", "-j", cwd=tmp_path)
    assert ended.returncode == 0
    (item,) = json.loads(ended.stdout)["items"]
    bundle = tmp_path / item["path"]
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    assert {file.name for file in bundle.iterdir()} == set(item["files"])
    for verb in LISTS:
        assert json.loads((bundle / f"{verb}.json").read_text())["schema"] == f"djinn.{verb}.v1"
    assert json.loads((bundle / "ps.json").read_text())["items"][0]["id"] == model
    assert "MemTotal" in (bundle / "kernel.txt").read_text()
    config = json.loads((bundle / "config.json").read_text())["items"]
    assert "memory.limit" in [setting["key"] for setting in config]
    assert ctl(daemon.host, "unload", model).returncode == 0


def test_a_report_has_neither_prompts_nor_what_a_model_said(
    daemon: Daemon, session: djinn.Session, byte_model: Path, tmp_path: Path
) -> None:
    djinn.Generator(session, byte_model).generate([[256, *SECRET.encode()]], max_new_tokens=4)
    said = ctl(daemon.host, "generate", str(byte_model), "--prompt", SECRET, "--greedy").stdout
    bundle = tmp_path / "bundle"
    assert ctl(daemon.host, "diag", "--output", str(bundle)).stdout == f"{bundle}\n"
    limits = (bundle / "limits.txt").read_text()  # of the worker, which there is now
    assert "Max open files" in limits
    for file in bundle.iterdir():
        text = file.read_text()
        assert SECRET not in text
        assert said.strip() not in text


def test_a_report_is_packed_when_it_is_asked_for(daemon: Daemon, tmp_path: Path) -> None:
    ended = ctl(daemon.host, "diag", "--tar", "--output", "report", "-j", cwd=tmp_path)
    (item,) = json.loads(ended.stdout)["items"]
    assert not (tmp_path / "report").exists(), "the file is in its place"
    assert f"djinnctl: {len(item['files'])} files, " in ended.stderr
    assert item["archive"] == "report.tar.gz"
    with tarfile.open(tmp_path / item["archive"]) as archive:
        packed = {name for name in archive.getnames() if name != "report"}
        assert packed == {f"report/{name}" for name in item["files"]}
        members = [archive.getmember(f"report/{name}") for name in item["files"]]
        assert item["bytes"] == sum(member.size for member in members)
    plain = ctl(daemon.host, "diag", "--tar", "--output", str(tmp_path / "other/"))
    assert plain.stdout == f"{tmp_path}/other.tar.gz\n"


def test_a_report_has_the_versions_of_the_packages(daemon: Daemon, tmp_path: Path) -> None:
    dpkg = tmp_path / "bin/dpkg-query"
    dpkg.parent.mkdir()
    dpkg.write_text("#!/bin/sh\necho djinnd 0.1.0 amd64 installed\nexit 1\n")  # one is unknown
    dpkg.chmod(0o755)
    environment = {**os.environ, "DJINN_HOST": daemon.host, "PATH": str(dpkg.parent)}
    command = [BIN / "djinnctl", "-q", "diag", "--output", tmp_path / "report"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)
    packages = (tmp_path / "report/packages.txt").read_text()
    assert packages == "djinnd 0.1.0 amd64 installed\n"


def test_a_report_without_a_daemon_says_what_is_missing(tmp_path: Path) -> None:
    ended = ctl("unix:/nonexistent", "diag", "-j", cwd=tmp_path)
    assert ended.returncode == 0
    (item,) = json.loads(ended.stdout)["items"]
    missing = [one["what"] for one in item["missing"]]
    assert {"status.json", "ps.json"} <= set(missing)
    assert not set(missing) & set(item["files"])
    told = ended.stderr.splitlines()
    assert [line for line in told if "without status.json: No djinnd answers" in line]
    assert ctl("unix:/nonexistent", "-q", "diag", cwd=tmp_path / item["path"]).stderr == ""


def test_a_report_never_writes_into_what_is_there(daemon: Daemon, tmp_path: Path) -> None:
    ended = ctl(daemon.host, "diag", "--output", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"No directory {tmp_path} can be made: File exists" in ended.stderr
    assert list(tmp_path.iterdir()) == []
    archive = tmp_path / "report.tar.gz"
    archive.write_text("another report")
    ended = ctl(daemon.host, "diag", "--tar", "--output", str(tmp_path / "report"))
    assert ended.returncode == 1
    assert f"No file {archive} can be made: File exists" in ended.stderr
    assert archive.read_text() == "another report"
    assert list(tmp_path.iterdir()) == [archive]


def test_beside_a_daemon_that_stands_still_there_is_what_is_known_without_it(
    daemon: Daemon, tmp_path: Path
) -> None:
    with stopped([daemon.process.pid]):
        shown = ctl(daemon.host, "version")
        ended = ctl(daemon.host, "diag", "-j", cwd=tmp_path)
        waited = ctl(daemon.host, "--timeout", "0.1", "status")
    assert shown.returncode == 0
    assert "does not answer" in shown.stdout
    (item,) = json.loads(ended.stdout)["items"]
    assert {"version.json", "config.json", "kernel.txt"} <= set(item["files"])
    why = {one["what"]: one["why"] for one in item["missing"]}
    assert "does not answer in time" in why["status.json"]
    assert waited.returncode == 7
    assert "djinnctl status" not in waited.stderr


# --- config show


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/djinn/djinnd.conf.d").mkdir(parents=True)
    (tmp_path / "etc/djinn/djinnd.conf").write_text('[memory]\nlimit = "50%"\n')
    return tmp_path


def shown(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ctl("unix:/nonexistent", "config", "show", "--root", str(root), *words)


def test_config_show_tells_each_setting_and_its_origin(root: Path) -> None:
    header, *rows = [line.split() for line in shown(root).stdout.splitlines()]
    assert header == ["KEY", "VALUE"]
    assert ["memory.limit", "50%"] in rows
    origins = [line.split() for line in shown(root, "--origin").stdout.splitlines()]
    assert ["memory.limit", "50%", f"{root}/etc/djinn/djinnd.conf:2"] in origins


def test_config_show_says_what_djinnd_says(root: Path) -> None:
    (root / "etc/djinn/djinnd.conf.d/10.conf").write_text("[lane]\nthreads = 3\n")
    items = json.loads(shown(root, "-j").stdout)["items"]
    command = [BIN / "djinnd", "--show-config", "--root", root]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines() == [
        f"{one['key']} = {one['value']}  # {one['origin'] or 'standard'}" for one in items
    ]
    assert [one["value"] for one in items if one["key"] == "lane.threads"] == ["3"]


def test_config_show_refuses_a_configuration_that_djinnd_refuses(root: Path) -> None:
    (root / "etc/djinn/djinnd.conf").write_text("[memory]\nlimit = 0\n")
    ended = shown(root)
    assert (ended.returncode, ended.stdout) == (10, "")
    assert "djinnd.conf:2: error: memory.limit" in ended.stderr
    assert "djinnctl: djinnd does not start with this configuration.\n" in ended.stderr
