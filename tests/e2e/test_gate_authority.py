# SPDX-License-Identifier: Apache-2.0
"""`djinnctl gate` and `djinnctl host`, as administrators and users call them. No djinnd runs; what
is issued is judged by openssl's own command."""

import os
import pty
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import Ended
from private_daemon import BIN

USAGE, FAILED, NO_SUCH_OBJECT, NOT_ALLOWED, BAD_FILES = 2, 1, 4, 5, 10
CERTIFICATE = "-----BEGIN CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----"

Ctl = Callable[..., Ended]


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    """Of somebody who has tmp_path alone."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DJINN_HOST": f"unix:{tmp_path}/nobody.sock",
    }

    def call(*words: str, **more: Any) -> Ended:
        done = subprocess.run(
            [str(BIN / "djinnctl"), *words],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=more.get("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            timeout=60,
        )
        return Ended(done.returncode, done.stdout or b"", done.stderr.decode())

    return call


@pytest.fixture
def gate(ctl: Ctl) -> Ctl:
    """The verbs of an authority that is there."""

    def call(verb: str, *words: str, **more: Any) -> Ended:
        return ctl("gate", verb, "--credentials", "gate", *words, **more)

    made = call("init", "--trust-domain", "example.org", "--address", "gpu.example.org")
    assert made.code == 0, made.err
    return call


def openssl(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return subprocess.run(
        ["openssl", *words], cwd=folder, capture_output=True, text=True, timeout=60
    )


def judged(folder: Path, certificate: str, purpose: str) -> str:
    """What openssl says of the first certificate in a file, for that purpose; strictly."""
    verified = openssl(
        *("verify", "-x509_strict", "-crl_check", "-purpose", purpose),
        *("-CAfile", "gate/authorities.pem", "-CRLfile", "gate/revoked.pem", certificate),
        folder=folder,
    )
    return verified.stdout + verified.stderr


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_who_is_enrolled_comes_in_until_they_are_revoked(gate: Ctl, tmp_path: Path) -> None:
    assert judged(tmp_path, "gate/certificate.pem", "sslserver").endswith(": OK\n")
    assert gate("enrol", "team/alice", "--out", "alice.pem").code == 0
    assert gate("enrol", "bob", "--days", "1", "--out", "bob.pem").code == 0
    assert mode(tmp_path / "alice.pem") == 0o600
    assert judged(tmp_path, "alice.pem", "sslclient").endswith(": OK\n")
    assert "unsuitable certificate purpose" in judged(tmp_path, "alice.pem", "sslserver")
    revoked = gate("revoke", "team/alice")
    assert revoked.code == 0
    assert "when it gets SIGHUP" in revoked.err
    assert "certificate revoked" in judged(tmp_path, "alice.pem", "sslclient")
    assert judged(tmp_path, "bob.pem", "sslclient").endswith(": OK\n")
    header, *rows = gate("list").table()
    assert header == ["PRINCIPAL", "SERIAL", "UNTIL", "STATE"]
    assert [(row[0], row[3]) for row in rows] == [
        (rows[0][0], "valid"),
        ("spiffe://example.org/team/alice", "revoked"),
        ("spiffe://example.org/bob", "valid"),
    ]
    assert rows[0][0].startswith("spiffe://example.org/djinn-gate/")
    assert all(re.fullmatch(r"[0-9a-f]{32}", row[1]) for row in rows)
    assert gate("revoke", rows[2][1]).code == 0
    assert "certificate revoked" in judged(tmp_path, "bob.pem", "sslclient")
    before = (tmp_path / "gate/certificate.pem").read_text()
    assert gate("renew").code == 0
    assert (tmp_path / "gate/certificate.pem").read_text() != before
    assert judged(tmp_path, "gate/certificate.pem", "sslserver").endswith(": OK\n")
    assert "certificate revoked" in judged(tmp_path, "bob.pem", "sslclient")


def test_a_profile_is_one_text(gate: Ctl) -> None:
    profile = gate("enrol", "alice").text()
    head, blocks = profile.split("\n\n", 1)
    address, name = head.splitlines()
    assert address == "address: gpu.example.org:10467"
    assert name.startswith("gate: spiffe://example.org/djinn-gate/")
    begins = re.findall(r"^-----BEGIN [A-Z ]+-----$", blocks, re.MULTILINE)
    assert begins == [CERTIFICATE, KEY, CERTIFICATE]
    elsewhere = gate("enrol", "alice", "--address", "[::1]:7").text()
    assert elsewhere.startswith("address: [::1]:7\n")


def test_a_key_is_not_shown_on_a_terminal(gate: Ctl, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        by_ctl = gate("enrol", "alice", stdout=theirs)
        by_itself = subprocess.run(
            [str(BIN / "djinn-gate-ca"), "enrol", "--credentials", "gate", "alice"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            timeout=60,
        )
        os.set_blocking(ours, False)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (by_ctl.code, by_itself.returncode) == (USAGE, 1)
    assert "Give --out FILE" in by_ctl.err
    assert "PRIVATE KEY" not in shown and "Give --out FILE" in shown
    assert len(gate("list", "-j").items()) == 1


def test_who_keeps_their_key_sends_a_request(gate: Ctl, ctl: Ctl, tmp_path: Path) -> None:
    made = openssl(
        *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", "alice.key", "-out", "alice.csr", "-subj", "/CN=root"),
        folder=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    assert gate("enrol", "alice", "--csr", "alice.csr", "--out", "alice.pem").code == 0
    assert judged(tmp_path, "alice.pem", "sslclient").endswith(": OK\n")
    assert KEY not in (tmp_path / "alice.pem").read_text()
    refused = ctl("host", "add", "alice.pem")
    assert refused.code == BAD_FILES and "Append the key" in refused.err
    with (tmp_path / "alice.pem").open("a") as profile:
        profile.write((tmp_path / "alice.key").read_text())
    assert ctl("host", "add", "alice.pem").code == 0


def test_of_those_who_are_enrolled_at_once_none_is_forgotten(gate: Ctl) -> None:
    names = [f"somebody/{i}" for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(lambda name: gate("enrol", name), names))
    assert {one.code for one in ended} == {0}, [one.err for one in ended]
    listed = [item["principal"] for item in gate("list", "-j").items()]
    assert sorted(listed[1:]) == sorted(f"spiffe://example.org/{name}" for name in names)


def test_of_two_inits_at_once_one_makes_an_authority(ctl: Ctl, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: ctl("gate", "init", "--credentials", "new"), range(4)))
    assert sorted(one.code for one in ended) == [0, FAILED, FAILED, FAILED]
    assert (tmp_path / "new/authorities.pem").read_bytes() == (
        tmp_path / "new/ca/certificate.pem"
    ).read_bytes()
    assert ctl("gate", "enrol", "alice", "--credentials", "new").code == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["init"], FAILED, "already, and nothing is overwritten"),
        (["enrol", "djinn-gate/box"], USAGE, "would be a gate's name"),
        (["enrol", "a//b"], USAGE, "is no name that a certificate may have"),
        (["enrol", "a\x1b[2J"], USAGE, "is no name that a certificate may have"),
        (["enrol", "alice", "--days", "0"], USAGE, "is no number from 1 to 397"),
        (["enrol", "alice", "--address", "a b"], USAGE, "is no address of a gate"),
        (["enrol", "alice", "--csr", "missing.csr"], NO_SUCH_OBJECT, "There is no missing.csr"),
        (["enrol", "alice", "--csr", "gate/key.pem"], BAD_FILES, "is no certificate request"),
        (["enrol", "alice", "--out", "gate/key.pem"], FAILED, "already, and it is not replaced"),
        (["revoke", "nobody"], NO_SUCH_OBJECT, "'djinnctl gate list' has all"),
    ],
)
def test_an_error_says_what_why_and_what_next(
    gate: Ctl, words: list[str], code: int, says: str
) -> None:
    ended = gate(*words)
    assert (ended.code, ended.out) == (code, b"")
    assert says in ended.err and "\x1b" not in ended.err
    assert len(ended.err.splitlines()) <= 3
    assert gate(*words, "-q").err == ""
    assert len(gate("list", "-j").items()) == 1


def test_without_an_authority_each_verb_says_how_to_make_one(ctl: Ctl) -> None:
    for words in (["enrol", "alice"], ["revoke", "alice"], ["list"], ["renew"]):
        ended = ctl("gate", *words, "--credentials", "nowhere")
        assert ended.code == NO_SUCH_OBJECT
        assert "'djinnctl gate init' makes one" in ended.err


def test_a_profile_is_kept_and_says_what_leads_there(gate: Ctl, ctl: Ctl, tmp_path: Path) -> None:
    assert gate("enrol", "alice", "--out", "alice.pem").code == 0
    added = ctl("host", "add", "alice.pem")
    assert added.text() == "export DJINN_HOST=djinn://gpu.example.org"
    hosts = tmp_path / ".config/djinn/hosts"
    kept = hosts / "gpu.example.org.pem"
    assert (mode(hosts), mode(kept)) == (0o700, 0o600)
    assert kept.read_bytes() == (tmp_path / "alice.pem").read_bytes()
    # The next certificate takes its place; another gate's does not.
    assert gate("enrol", "alice", "--out", "later.pem").code == 0
    assert ctl("host", "add", "later.pem").code == 0
    assert kept.read_bytes() == (tmp_path / "later.pem").read_bytes()
    assert ctl("gate", "init", "--credentials", "other", "--trust-domain", "other").code == 0
    address = ["--address", "gpu.example.org"]
    assert ctl("gate", "enrol", "a", "--credentials", "other", *address, "--out", "o.pem").code == 0
    refused = ctl("host", "add", "o.pem")
    assert refused.code == FAILED and "leads to another gate" in refused.err
    named = ctl("host", "add", "o.pem", "--name", "other")
    assert named.text() == "export DJINN_HOST=djinn://other"
    assert sorted(path.name for path in hosts.iterdir()) == ["gpu.example.org.pem", "other.pem"]


def test_a_profile_that_others_may_read_or_that_was_cut_is_refused(
    gate: Ctl, ctl: Ctl, tmp_path: Path
) -> None:
    profile = tmp_path / "alice.pem"
    assert gate("enrol", "alice", "--out", "alice.pem").code == 0
    profile.chmod(0o640)
    refused = ctl("host", "add", "alice.pem")
    assert refused.code == NOT_ALLOWED and "chmod 600 alice.pem" in refused.err
    profile.chmod(0o600)
    refused = ctl("host", "add", "alice.pem", "--name", "../x")
    assert refused.code == USAGE and "is no name of a host" in refused.err
    profile.write_bytes(profile.read_bytes()[:-40])
    refused = ctl("host", "add", "alice.pem")
    assert refused.code == BAD_FILES and "is no profile of a gate" in refused.err
    assert ctl("host", "add", "missing.pem").code == NO_SUCH_OBJECT
    assert not (tmp_path / ".config").exists()
