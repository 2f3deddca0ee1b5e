# SPDX-License-Identifier: Apache-2.0
"""djinnctl against a daemon: tables, JSON, ids, exit codes; what a model says."""

import getpass
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import BIN, Daemon, running, wait_until
from safetensors.numpy import save_file
from terminal import Terminal
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

PROMPT = "The kernel "
DOUBLE = """srg 1 "double"
symbol n 1..64
input %x : float32[n]
%y = aten::add.Tensor(%x, %x)
output %y
"""
NEW_TOKENS = 24


@pytest.fixture
def loaded(daemon: Daemon, byte_model: Path) -> Iterator[str]:
    """The id of the byte model, pinned for the time of the test; its files' hash is known."""
    model = ctl(daemon, "load", str(byte_model)).text()
    wait_until(lambda: ctl(daemon, "ps", "-j").items()[0]["sha256"] is not None, "it is hashed")
    yield model
    wait_until(lambda: ctl(daemon, "unload", model).code == 0, "the test's sessions are gone")


def sessions_of(daemon: Daemon) -> list[dict[str, Any]]:
    return ctl(daemon, "sessions", "-j").items()


def session_named(daemon: Daemon, name: str) -> str | None:
    return next((item["id"] for item in sessions_of(daemon) if item["name"] == name), None)


def test_a_model_is_loaded_where_the_device_is_named(byte_model: Path) -> None:
    other = ["--test-device-bytes", str(64 << 20)]
    worker = ["--test-device-worker", str(BIN / "djinnd-fake-worker-test")]
    with running("--memory", "200MiB", *other, *worker) as daemon:
        named = [item["device"] for item in ctl(daemon, "devices", "-j").items()]
        assert named == ["cpu:0", "fake:0"]
        ids = {
            device: ctl(daemon, "load", "--device", device, str(byte_model)).text()
            for device in named
        }
        assert len(set(ids.values())) == 2
        said = {item["device"]: item["id"] for item in ctl(daemon, "ps", "-j").items()}
        assert said == ids
        assert ctl(daemon, "load", str(byte_model)).text() == ids["cpu:0"]
        for words in (["load"], ["generate", "--prompt", PROMPT]):
            refused = ctl(daemon, *words, "--device", "gpu:7", str(byte_model))
            assert refused.code != 0
            assert "gpu:7" in refused.err and "cpu:0 and fake:0" in refused.err, refused.err


def test_a_loaded_model_is_listed_until_it_is_unloaded(daemon: Daemon, byte_model: Path) -> None:
    assert len(ctl(daemon, "ps").table()) == 1
    model = ctl(daemon, "load", str(byte_model)).text()
    header, row = ctl(daemon, "ps").table()
    assert header == ["NAME", "ID", "DEVICE", "SIZE", "REFS", "STATE", "PIN", "UNTIL", "USER"]
    assert row[:3] == ["bytes", model, "cpu:0"]
    assert row[-5:] == ["0", "resident", "yes", "unload", getpass.getuser()]
    assert re.fullmatch(r"[0-9a-f]{12}", model)
    assert ctl(daemon, "unload", model[:8]).text() == ""
    assert len(ctl(daemon, "ps").table()) == 1


def test_json_has_raw_bytes_and_rfc_3339_times(
    daemon: Daemon, byte_model: Path, loaded: str
) -> None:
    (item,) = ctl(daemon, "ps", "--json").items()
    assert item["id"] == loaded
    size = (byte_model / "model.safetensors").stat().st_size
    assert size * 0.9 < item["bytes"] < size * 1.1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", item["loaded"])
    (status,) = ctl(daemon, "--json", "status").items()
    assert status["memory_models_bytes"] >= item["bytes"]
    assert status["models"] == 1


def test_a_second_load_shares_the_first(daemon: Daemon, byte_model: Path, loaded: str) -> None:
    (again,) = ctl(daemon, "load", str(byte_model), "--json").items()
    assert again["id"] == loaded
    assert again["was_resident"] is True


def test_the_log_says_who_evicted_unloaded_drained_and_resumed(byte_model: Path) -> None:
    with running() as own:
        assert ctl(own, "load", str(byte_model)).code == 0
        evict = ("evict", "--force", "bytes")
        wait_until(lambda: ctl(own, *evict).code == 0, "it is hashed, and evicted")
        for words in (("unload", "bytes"), ("drain",), ("resume",)):
            assert ctl(own, *words).code == 0
        log = own.log.read_text()
    user = getpass.getuser()
    for what in ("is evicted to disk: ", "is unloaded: ", "draining: no new session", "resumed"):
        (line,) = (one for one in log.splitlines() if what in one)
        assert line.endswith(f", by user {user}"), line


def test_a_model_in_use_is_not_unloaded(
    daemon: Daemon, session: djinn.Session, byte_model: Path, loaded: str
) -> None:
    djinn.Generator(session, byte_model)
    ended = ctl(daemon, "unload", loaded)
    assert ended.code == 6
    assert ended.err.startswith("djinnctl: The model is in use.\n")
    session.close()


def test_status_tells_the_daemon_and_its_workers(daemon: Daemon, session: djinn.Session) -> None:
    text = ctl(daemon, "status").text()
    assert text.startswith("FIELD")
    assert re.search(r"^memory +\S+ [KMGT]?i?B of \S+ GiB$", text, re.MULTILINE)
    assert re.search(r"^DEVICE +USER +PID +STATE", text, re.MULTILINE)
    assert re.search(r"^cpu:0 ", text, re.MULTILINE)


def test_a_session_is_listed_and_shown(daemon: Daemon, session: djinn.Session) -> None:
    sessions = ctl(daemon, "sessions", "--json").items()
    (mine,) = [item for item in sessions if item["id"] == session.id]
    assert mine["pid"] == os.getpid()
    assert mine["granted_bytes"] > 0
    (shown,) = ctl(daemon, "show", mine["id"], "--json").items()
    assert shown["kind"] == "session"
    assert shown["id"] == mine["id"]
    assert ctl(daemon, "show", mine["id"]).table()[1] == ["kind", "session"]


def test_four_digits_name_what_has_that_id_and_fewer_name_nothing(
    daemon: Daemon, loaded: str
) -> None:
    assert ctl(daemon, "show", loaded[:4], "-j").items()[0]["id"] == loaded
    ended = ctl(daemon, "unload", loaded[:3])
    assert ended.code == 4
    assert "first four will do" in ended.err


# --- who uses what


def test_a_model_shows_who_holds_and_who_pinned_it(
    daemon: Daemon, session: djinn.Session, byte_model: Path, loaded: str
) -> None:
    holder = {
        "session": session.id,
        "owner": getpass.getuser(),
        "pid": os.getpid(),
        "name": "test_a_model_shows_who_holds_and_who_pinned_it",
    }
    with daemon.connect("a guest", observer=True) as guest:
        guest.load(byte_model)
        session.load(byte_model)
        (item,) = ctl(daemon, "ps", "-j").items()
        assert holder in item["holders"]
        assert {one["name"] for one in item["holders"]} == {holder["name"], "a guest"}
        assert item["pinned_by"] == [getpass.getuser()]
        assert item["path"] == str(byte_model)
        assert {one["id"]: one["path"] for one in session.models()} == {loaded: str(byte_model)}
        (shown,) = ctl(daemon, "show", loaded, "-j").items()
        dtypes = shown["dtypes"]
        assert shown == {"kind": "model", **item, "dtypes": dtypes}
    fields, weights, holders, names = ctl(daemon, "show", loaded).text().split("\n\n")
    # The words of ps, not those of JSON.
    rows = [line.split() for line in fields.splitlines()]
    for shown_row in (["REFS", "1"], ["USER", getpass.getuser()], ["PIN", "yes"]):
        assert shown_row in rows
    assert ["pinned", "by", getpass.getuser()] in rows
    assert names.splitlines()[1].split() == [getpass.getuser(), "bytes", str(byte_model)]
    header, row = [line.split() for line in weights.splitlines()]
    assert header == ["DTYPE", "TENSORS", "SIZE"]
    assert row[:2] == [dtypes[0]["dtype"], str(dtypes[0]["tensors"])]
    header, row = [line.split() for line in holders.splitlines()]
    assert header == ["SESSION", "USER", "PID", "APP"]
    assert row == [session.id, getpass.getuser(), str(os.getpid()), holder["name"]]
    session.close()


def test_a_model_shows_the_dtypes_of_its_weights(daemon: Daemon, tmp_path: Path) -> None:
    tensors = {
        "a": np.zeros((3, 5), np.float16),
        "b": np.zeros(7, np.float16),
        "c": np.zeros(2, np.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with daemon.connect("holder") as session:
        model = session.load(tmp_path / "model.safetensors")
        (shown,) = ctl(daemon, "show", model.id, "-j").items()
        assert shown["dtypes"] == [
            {"dtype": "float16", "tensors": 2, "bytes": 44},
            {"dtype": "int64", "tensors": 1, "bytes": 16},
        ]
        told = ctl(daemon, "show", model.id).text().split("\n\n")[1].splitlines()
        assert [line.split() for line in told] == [
            ["DTYPE", "TENSORS", "SIZE"],
            ["float16", "2", "44", "B"],
            ["int64", "1", "16", "B"],
        ]
    wait_until(lambda: ctl(daemon, "unload", model.id).code == 0, "nobody has it open")


def test_a_program_shows_what_it_is_for(
    daemon: Daemon, session: djinn.Session, byte_model: Path
) -> None:
    generator = djinn.Generator(session, byte_model)
    generator.generate([[256, *b"The"]], max_new_tokens=2)
    shown = [
        ctl(daemon, "show", item["id"], "-j").items()[0]
        for item in ctl(daemon, "programs", "-j").items()
        if item["model"] == generator.model.id
    ]
    told = {(item["name"], item["workload"]) for item in shown}
    assert told == {("llama.prefill", "prefill"), ("llama.decode", "decode step")}
    rows = ctl(daemon, "show", shown[0]["id"]).table()
    assert ["name", shown[0]["name"]] in rows
    assert ["workload", *shown[0]["workload"].split()] in rows
    session.close()


def test_a_session_shows_the_models_that_it_holds(
    daemon: Daemon, session: djinn.Session, byte_model: Path, loaded: str
) -> None:
    assert ctl(daemon, "show", session.id).text().count("\n\n") == 0
    model = session.load(byte_model)
    (shown,) = ctl(daemon, "show", session.id, "-j").items()
    assert shown["held_models"] == [{"id": loaded, "name": "bytes", "bytes": model.bytes}]
    (listed,) = [one for one in sessions_of(daemon) if one["id"] == session.id]
    assert {"kind": "session", **listed}["held_models"] == shown["held_models"]
    _, _, models = ctl(daemon, "show", session.id).text().partition("\n\n")
    assert [line.split()[:2] for line in models.splitlines()] == [["NAME", "ID"], ["bytes", loaded]]
    session.close()


def test_the_session_of_djinnctl_itself_is_not_listed(daemon: Daemon) -> None:
    wait_until(
        lambda: [one["name"] for one in sessions_of(daemon)] == ["observer"],
        "the observer of these tests is the only session",
    )
    assert ctl(daemon, "status", "-j").items()[0]["sessions"] == 1
    (view,) = ctl(daemon, "top", "-j").items()
    assert (view["sessions"], [one["name"] for one in view["sessions_list"]]) == (1, ["observer"])


# --- what a word names


def test_a_model_is_named_by_its_id_its_name_or_its_path(
    daemon: Daemon, byte_model: Path, loaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(byte_model)
    monkeypatch.chdir(byte_model.parent)
    names = (loaded, loaded[:6], "bytes", str(byte_model), "./bytes", f"{tmp_path}/link")
    for name in names:
        assert ctl(daemon, "show", name, "-j").items()[0]["id"] == loaded, name
        assert ctl(daemon, "unpin", name).code == 0, name
        assert ctl(daemon, "pin", name, "-j").items()[0]["id"] == loaded, name
    assert ctl(daemon, "evict", "--force", "bytes", "-j").items()[0]["id"] == loaded
    assert ctl(daemon, "pin", "bytes").code == 0


def test_a_name_that_two_models_have_lists_both(
    daemon: Daemon, byte_model: Path, loaded: str, tmp_path: Path
) -> None:
    twin = tmp_path / "bytes"
    shutil.copytree(byte_model, twin)
    with (twin / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    other = ctl(daemon, "load", str(twin)).text()
    assert other != loaded
    ended = ctl(daemon, "unload", "bytes")
    assert ended.code == 2
    for model, path in ((loaded, byte_model), (other, twin)):
        assert f"{model} (model bytes from {path}, " in ended.err
    assert ctl(daemon, "unload", str(twin)).code == 0
    assert ctl(daemon, "show", "bytes").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "verb is missing in 'djinnctl VERB'. 'djinnctl --help' lists all."),
        (["config"], "verb is missing in 'djinnctl config VERB'."),
        (["psx"], "no verb 'psx'; did you mean 'ps'?"),
        (["evct", "--all"], "no verb 'evct'; did you mean 'evict'?"),
        (["weights"], "no verb 'weights'. 'djinnctl --help' lists all."),
        (["models", "bad"], "no verb 'models bad'. 'djinnctl models --help' lists all."),
        (
            ["reload"],
            "no verb 'reload': 'systemctl reload djinnd' does it, as root. 'djinnctl --help'",
        ),
        (["config", "check"], "'djinnd --check-config' checks the configuration. 'djinnctl config"),
        (["config", "shw"], "no verb 'config shw'; did you mean 'config show'?"),
        (["help", "drian"], "no verb 'drian'; did you mean 'drain'?"),
        (["ps", "--jsn"], "no option '--jsn'; did you mean '--json'? 'djinnctl ps --help' lists"),
        (["--verison"], "no option '--verison'; did you mean '--version'?"),
        (["load", "--keep=5", "x"], "no option '--keep'"),
        (["evict", "--to", "gpu", "x"], "--to: 'gpu' is not disk or host. 'djinnctl evict --help'"),
        (["load", "--weights", "int4", "x"], "--weights: 'int4' is not int8. 'djinnctl load"),
        (["generate", "x", "--weights", "int4"], "--weights: 'int4' is not int8."),
        (
            ["load", "x", "--numerics", "quick"],
            "--numerics: 'quick' is not exact, fast or fast-only. 'djinnctl load --help'",
        ),
        (
            ["generate", "x", "--numerics", "quick"],
            "--numerics: 'quick' is not exact, fast or fast-only. 'djinnctl generate --help'",
        ),
        (
            ["generate", "x", "--class", "realtime"],
            "--class: 'realtime' is not interactive, normal, batch or idle. 'djinnctl generate",
        ),
        (["drain", "--wait", "soon"], "'soon' is no time from 0 to 1000000s"),
        (["--timeout", "0", "ps"], "'0' is no time from 1ms to 1000000s"),
        (["top", "--delay", "x"], "'x' is no time from 100ms to 1h"),
        (["generate", "x", "--prompt", "y", "--temperature", "-1"], "'-1' is no number from 0 on"),
        (["load", "--keep-alive"], "--keep-alive needs a value: TIME. 'djinnctl load --help'"),
        (["load", "--keep-alive", "5", "x"], "'5' is no time with its unit"),
        (["generate", "x", "--prompt", "y", "--top-k", "z"], "--top-k: 'z' is no number"),
        (["ps", "-x"], "There is no option '-x'. 'djinnctl ps --help' lists all."),
        (["ps", "extra"], "not expected: extra. 'djinnctl ps --help'"),
    ],
)
def test_a_mistake_in_the_command_line_is_told(daemon: Daemon, words: list[str], told: str) -> None:
    ended = ctl(daemon, *words)
    assert (ended.code, ended.out) == (2, b"")
    assert told in ended.err
    assert ended.err.startswith("djinnctl: ")
    assert len(ended.err) < 300
    assert ctl(daemon, "-q", *words).err == ""


def test_a_mistake_in_the_command_line_is_json_to_who_reads_json(daemon: Daemon) -> None:
    ended = ctl(daemon, "-j", "evct", "--all")
    assert (ended.code, ended.out) == (2, b"")
    (item,) = json.loads(ended.err)["items"]
    assert item["message"].startswith("There is no verb 'evct'; did you mean 'evict'?")
    assert (item["error"], item["exit_status"]) == ("invalid_argument", 2)
    assert ctl(daemon, "-q", "-j", "evct", "--all").err == ""


@pytest.mark.parametrize("word", ["-j=pretty", "-jpretty"])
def test_a_style_of_json_behind_the_short_option_is_told_how_to_be_written(
    daemon: Daemon, word: str
) -> None:
    ended = ctl(daemon, word, "ps")
    (item,) = json.loads(ended.err)["items"]
    assert (ended.code, ended.out) == (2, b"")
    assert "-j stands alone: write --json=pretty" in item["message"]


def test_help_is_a_verb_too(daemon: Daemon) -> None:
    assert ctl(daemon, "help").text() == ctl(daemon, "--help").text()
    assert ctl(daemon, "help", "ps").text() == ctl(daemon, "ps", "--help").text()
    assert (
        ctl(daemon, "help", "config", "show").text()
        == ctl(daemon, "config", "show", "--help").text()
    )
    assert "SUBCOMMAND" not in ctl(daemon, "--help").text()


def test_help_has_one_word_for_each_value(daemon: Daemon) -> None:
    text = ctl(daemon, "--help").text()
    options = re.findall(r"^  (-\S.*?)(?:  +|$)", text, re.MULTILINE)
    assert "--timeout TIME" in options
    assert "-H, --host ADDRESS" in options
    assert "as unix:PATH or a path from /" in " ".join(text.split())
    assert "-j, --json[=short|pretty|off]" in options
    verbs = re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE)
    shape = r"  (-\w, )?(--[a-z-]+)?( [A-Za-z_]+| \[[A-Z]+\])?(\[=[a-z|]+\])?(  |$)"
    for verb in verbs:
        lines = ctl(daemon, verb, "--help").text().splitlines()
        shown = [line for line in lines if line.startswith("  -")]
        assert shown, verb
        for line in shown:
            assert re.match(shape, line), line
            assert "FLOAT" not in line and "UINT" not in line and "Excludes" not in line, line


def test_a_missing_option_is_no_unknown_verb(daemon: Daemon) -> None:
    ended = ctl(daemon, "generate", "models/bytes", "--promt", "text")
    assert ended.code == 2
    assert "--prompt" in ended.err
    assert "verb" not in ended.err


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["ps", "extra"]),
        (4, ["show", "not-an-id"]),
        (4, ["show", "ffffffffffff"]),
        (4, ["unload", "ffffffffffff"]),
        (4, ["pin", "ffffffffffff"]),
        (4, ["cancel", "ffffffffffff"]),
        (4, ["terminate", "ffffffffffff"]),
        (2, ["-H", "tcp:1.2.3.4", "ps"]),
        (2, ["--json=loud", "ps"]),
        (2, ["completion", "csh"]),
        (3, ["-H", "unix:/nonexistent", "ps"]),
        (4, ["load", "/nonexistent"]),
    ],
)
def test_exit_codes(daemon: Daemon, code: int, words: list[str]) -> None:
    ended = ctl(daemon, *words)
    assert ended.code == code
    assert ended.out == b""
    assert ended.err


def test_a_device_that_is_not_there_is_no_daemon_that_does_not_run(
    daemon: Daemon, byte_model: Path
) -> None:
    for words in (["load", str(byte_model)], ["generate", str(byte_model), "--prompt", PROMPT]):
        ended = ctl(daemon, *words, "--device", "cuda:0")
        assert (ended.code, "no device 'cuda:0'" in ended.err) == (4, True), ended.err
        assert ctl(daemon, "-H", "unix:/nonexistent", *words, "--device", "cpu:0").code == 3


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (4, "not_found", ["show", "ffffffffffff"]),
        (2, "invalid_argument", ["psx"]),
        (2, "invalid_argument", ["drain", "--wait", "soon"]),
        (3, "disconnected", ["-H", "unix:/nonexistent", "ps"]),
    ],
)
def test_with_json_a_failure_is_one_object(
    daemon: Daemon, code: int, kind: str, words: list[str]
) -> None:
    for style in ("-j", "--json=pretty"):
        ended = ctl(daemon, style, *words)
        told = json.loads(ended.err)
        (item,) = told["items"]
        assert (told["schema"], ended.code, ended.out) == ("djinn.error.v1", code, b"")
        assert (item["error"], item["exit_status"]) == (kind, code)
        assert item["message"]
        assert ctl(daemon, "-q", style, *words).err == ""


def test_with_json_a_timeout_is_one_object(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        command = [str(BIN / "djinnctl"), "-H", f"unix:{tmp_path}/silent", "-j"]
        done = subprocess.run(
            [*command, "--timeout", "200ms", "ps"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 7
        assert json.loads(done.stderr)["items"][0]["exit_status"] == 7


def test_an_unpin_that_changes_nothing_says_so(daemon: Daemon, loaded: str) -> None:
    assert ctl(daemon, "unpin", loaded).err == ""
    ended = ctl(daemon, "unpin", loaded)
    assert (ended.code, ended.err) == (0, f"djinnctl: model bytes ({loaded}) was not pinned\n")
    assert ctl(daemon, "-q", "unpin", loaded).err == ""


def test_weights_that_do_not_fit_are_no_memory_for_load_and_for_generate(
    byte_model: Path,
) -> None:
    # The one has no room for the model beside a session, the other not for the model alone.
    with running("--memory", "12MiB") as own:
        ended = ctl(own, "generate", str(byte_model), "--prompt", PROMPT)
        assert (ended.code, "are needed" in ended.err) == (9, True), ended.err
    with running("--memory", "2MiB") as own:
        ended = ctl(own, "load", str(byte_model))
        assert (ended.code, "are needed" in ended.err) == (9, True), ended.err
        log = own.log.read_text()
    # It is the first that djinnd hears of this user, and it knows the name.
    assert f"of user {getpass.getuser()} could not be loaded" in log


def test_quiet_leaves_the_exit_code_alone(daemon: Daemon) -> None:
    ended = ctl(daemon, "-q", "show", "ffffffffffff")
    assert (ended.code, ended.out, ended.err) == (4, b"", "")


def test_a_daemon_that_does_not_answer_ends_in_a_timeout(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        ended = subprocess.run(
            [BIN / "djinnctl", "-H", f"unix:{tmp_path}/silent", "--timeout", "0.05", "ps"],
            capture_output=True,
            timeout=60,
        )
    assert (ended.returncode, ended.stdout) == (7, b"")
    first, second = ended.stderr.decode().splitlines()
    assert "not done in the time that --timeout gives" in first
    assert second.startswith("Give it more time; ")


def test_json_comes_in_one_line_or_several(daemon: Daemon, loaded: str) -> None:
    short = ctl(daemon, "-j", "ps")
    pretty = ctl(daemon, "--json=pretty", "ps")
    assert short.out.count(b"\n") == 1 < pretty.out.count(b"\n")
    assert short.items() == pretty.items() == ctl(daemon, "--json=short", "ps").items()
    assert ctl(daemon, "--json=off", "ps").out == ctl(daemon, "ps").out


def test_without_legend_there_are_rows_alone(daemon: Daemon, loaded: str) -> None:
    with_header = ctl(daemon, "ps").table()
    assert ctl(daemon, "ps", "--no-legend", "--no-pager").table() == with_header[1:]


def test_a_pin_goes_and_comes_back(daemon: Daemon, loaded: str) -> None:
    def weights() -> dict[str, Any]:
        return next(item for item in ctl(daemon, "mem", "-j").items() if item["pool"] == "weights")

    (model,) = ctl(daemon, "ps", "-j").items()
    assert weights()["pinned_bytes"] == weights()["cached_bytes"] == model["bytes"]
    assert weights()["evictable_bytes"] == 0
    assert ctl(daemon, "unpin", loaded).code == 0
    assert weights()["pinned_bytes"] == 0
    assert weights()["evictable_bytes"] == model["bytes"]
    assert ctl(daemon, "ps", "-j").items()[0]["until"] == "expiry"
    assert ctl(daemon, "pin", loaded).code == 0
    assert weights()["evictable_bytes"] == 0


def test_devices_and_pools_add_up(daemon: Daemon, session: djinn.Session) -> None:
    (device,) = ctl(daemon, "devices", "-j").items()
    pools = ctl(daemon, "mem", "-j").items()
    assert [pool["pool"] for pool in pools] == ["weights", "sessions", "lanes"]
    assert sum(pool["reserved_bytes"] for pool in pools) == device["used_bytes"]
    assert device["used_bytes"] <= device["total_bytes"]
    assert (device["device"], device["state"], device["lanes"]) == ("cpu:0", "ready", 1)
    assert all(pool["mapped_bytes"] <= pool["reserved_bytes"] for pool in pools)


def test_programs_are_listed_with_who_uses_them(daemon: Daemon, session: djinn.Session) -> None:
    before = {item["id"] for item in ctl(daemon, "programs", "-j").items()}
    session.define(DOUBLE)
    (program,) = [
        item for item in ctl(daemon, "programs", "-j").items() if item["id"] not in before
    ]
    assert (program["state"], program["sessions"], program["outputs"]) == ("admitted", 1, 1)
    assert program["model"] is None


def test_a_terminated_session_is_told_and_gone(daemon: Daemon) -> None:
    with daemon.connect("victim") as victim:
        assert ctl(daemon, "terminate", session_named(daemon, "victim")).code == 0
        with pytest.raises(djinn.Error, match="Its own user ended the session with") as ended:
            victim.put(np.zeros(4, np.float32))
        assert ended.value.code == "disconnected"
        wait_until(lambda: session_named(daemon, "victim") is None, "it is released")


def test_a_session_is_not_named_by_its_pid_and_who_does_is_told_how(
    daemon: Daemon, session: djinn.Session
) -> None:
    ended = ctl(daemon, "terminate", "0")
    assert ended.code == 4
    assert "first column of 'djinnctl sessions'" in " ".join(ended.err.split())
    assert "a model" not in ended.err


def test_a_session_that_runs_nothing_has_nothing_to_cancel(
    daemon: Daemon, session: djinn.Session, request: pytest.FixtureRequest
) -> None:
    ended = ctl(daemon, "cancel", str(session_named(daemon, request.node.name)))
    assert ended.code == 4
    assert "no run in flight" in ended.err


def test_a_long_generation_is_cancelled(daemon: Daemon, byte_model: Path) -> None:
    words = ["generate", str(byte_model), "--prompt", "x", "--max-new-tokens", "900"]
    with subprocess.Popen(
        [BIN / "djinnctl", *words, "--temperature", "1"],
        env={**os.environ, "DJINN_HOST": daemon.host},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as generation:
        assert generation.stdout is not None and generation.stderr is not None
        assert generation.stdout.read(1)
        mine = next(i["id"] for i in sessions_of(daemon) if i["pid"] == generation.pid)
        wait_until(
            lambda: generation.poll() is not None or ctl(daemon, "cancel", mine).code == 0,
            "it is cancelled",
        )
        told = generation.stderr.read().decode()
        assert generation.wait(60) == 1
        assert "generation was given up" in told


def test_version_tells_both(daemon: Daemon) -> None:
    (item,) = ctl(daemon, "version", "-j").items()
    assert item["djinnctl"] == item["djinnd"] == daemon.status()["version"]
    assert ctl(daemon, "version", "-H", "unix:/nonexistent").table()[2] == ["djinnd", "-"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_verb(daemon: Daemon, shell: str) -> None:
    script = ctl(daemon, "completion", shell).text()
    verbs = re.findall(r"^  ([a-z]+)  ", ctl(daemon, "--help").text(), re.MULTILINE)
    assert len(verbs) > 15
    for verb in verbs:
        assert re.search(rf"\b{verb}\b", script), verb


def test_without_a_daemon_the_exit_code_is_3(byte_model: Path) -> None:
    with running() as daemon:
        pass
    ended = ctl(daemon, "load", str(byte_model))
    assert ended.code == 3
    assert "djinnd --user" in ended.err


def test_a_closed_output_takes_no_other_descriptors_place(daemon: Daemon) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" ps >&-', str(BIN / "djinnctl")],
        env={**os.environ, "DJINN_HOST": daemon.host},
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert ended.returncode in (0, 1)
    assert "protocol_violation" not in daemon.log.read_text()


def test_what_does_not_fit_the_model_is_refused_before_the_first_token(
    daemon: Daemon, byte_model: Path
) -> None:
    ended = ctl(daemon, "generate", str(byte_model), "--prompt", "x", "--max-new-tokens", "100000")
    assert ended.code == 1
    assert ended.out == b""
    assert "positions" in ended.err


def test_a_count_of_views_is_one_or_more(daemon: Daemon) -> None:
    for count in ("0", "-1"):
        ended = ctl(daemon, "top", "-n", count)
        assert (ended.code, ended.out) == (2, b"")
        assert f"'{count}' is no number from 1" in ended.err


def test_a_session_where_a_model_is_wanted_is_called_one(daemon: Daemon, byte_model: Path) -> None:
    with daemon.connect("holder") as session:
        model = session.load(byte_model)
        (item,) = [one for one in ctl(daemon, "sessions", "-j").items() if one["name"] == "holder"]
        ended = ctl(daemon, "unload", item["id"])
        assert ended.code == 4
        assert f"{item['id']} is session holder, and no model" in ended.err
        ended = ctl(daemon, "cancel", model.id)
        assert ended.code == 4
        assert f"{model.id} is model" in ended.err and "and no session" in ended.err


def test_several_models_are_pinned_and_unloaded_at_once(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(byte_model, tmp_path / "second")
    first, second = (
        ctl(daemon, "load", "--no-pin", str(path)).text()
        for path in (byte_model, tmp_path / "second")
    )
    named = {first, second}
    assert {one["id"] for one in ctl(daemon, "pin", *named, "-j").items()} == named
    assert all(one["pinned"] for one in ctl(daemon, "ps", "-j").items() if one["id"] in named)
    # All are looked up before anything is done.
    assert ctl(daemon, "unpin", first, "no-such-model").code == 4
    assert all(one["pinned"] for one in ctl(daemon, "ps", "-j").items() if one["id"] in named)
    assert {one["id"] for one in ctl(daemon, "unload", *named, "-j").items()} == named
    assert not named & {one["id"] for one in ctl(daemon, "ps", "-j").items()}


def test_a_directory_that_is_no_model_is_told_what_one_is(daemon: Daemon, tmp_path: Path) -> None:
    ended = ctl(daemon, "load", str(tmp_path))
    assert ended.code == 4
    assert f"{tmp_path} is an empty directory." in ended.err
    (tmp_path / "model.safetensors").touch()
    ended = ctl(daemon, "load", str(tmp_path))
    assert f"There is no config.json in {tmp_path}." in ended.err


def test_a_full_disk_is_no_success(daemon: Daemon) -> None:
    with Path("/dev/full").open("wb") as full:
        assert ctl(daemon, "ps", stdout=full.fileno()).code == 1


# --- generate


def test_generate_says_what_transformers_says(daemon: Daemon, byte_model: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(byte_model, dtype=torch.float32).eval()
    ids = torch.tensor([[reference.config.bos_token_id, *PROMPT.encode()]])
    with torch.inference_mode():
        out = reference.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)
    expected = bytes(token for token in out[0, ids.shape[1] :].tolist() if token < 256)
    words = ("generate", str(byte_model), "--prompt", PROMPT, "--max-new-tokens", str(NEW_TOKENS))
    assert ctl(daemon, *words).out == expected + b"\n"
    assert ctl(daemon, *words, "--greedy").out == expected + b"\n"
    assert ctl(daemon, *words, "--temperature", "0").out == expected + b"\n"
    (item,) = ctl(daemon, *words, "--json").items()
    assert bytes(token for token in item["tokens"] if token < 256) == expected


def test_several_prompts_are_told_one_after_the_other(daemon: Daemon, byte_model: Path) -> None:
    """The longest first, and last an empty one."""
    prompts = [PROMPT, "The", ""]
    words = ["generate", str(byte_model), "--max-new-tokens", "9"]
    for prompt in prompts:
        words += ["--prompt", prompt]
    with daemon.connect("rows") as session:
        generator = djinn.Generator(session, byte_model)
        rows = [[256, *prompt.encode()] for prompt in prompts]
        expected = generator.generate(rows, max_new_tokens=9).tokens
    said = [bytes(token for token in row if token < 256) for row in expected]
    assert len(set(said)) == len(said)
    assert ctl(daemon, *words).out == b"".join(row + b"\n" for row in said)
    items = ctl(daemon, *words, "--json").items()
    assert [item["prompt"] for item in items] == prompts
    assert [item["prompt_tokens"] for item in items] == rows
    assert [item["tokens"] for item in items] == expected


def test_a_character_that_one_row_begins_is_not_the_next_one_s_to_end(
    daemon: Daemon, byte_model: Path
) -> None:
    """On a terminal, where bytes that continue no character are not shown."""
    rows = [[256, letter] for letter in b"abcdefghijklmnopqrstuvwxyz"]
    with daemon.connect("rows") as session:
        generator = djinn.Generator(session, byte_model)

        def first_bytes(seed: int) -> list[int]:
            drawn: dict[str, Any] = {"max_new_tokens": 1, "temperature": 100.0, "seed": seed}
            return [token for (token,) in generator.generate(rows, **drawn).tokens]

        def begun(said: list[int]) -> list[int]:
            """Rows of a byte that continues a character, behind the only one of a byte that begins
            it."""
            pairs = enumerate(itertools.pairwise(said), start=1)
            fitting = [at for at, (a, b) in pairs if 0xC3 <= a <= 0xF4 and 0x80 <= b < 0xC0]
            return [at for at in fitting if said.count(said[at - 1]) == 1]

        seed = next(seed for seed in itertools.count() if begun(first_bytes(seed)))
        said = first_bytes(seed)
    words = ["generate", str(byte_model), "--max-new-tokens", "1", "--temperature", "100"]
    for _, letter in rows:
        words += ["--prompt", chr(letter)]
    with Terminal() as terminal:
        process = subprocess.Popen(
            [str(BIN / "djinnctl"), *words, "--seed", str(seed)],
            env={**os.environ, "DJINN_HOST": daemon.host},
            stdout=terminal.slave,
        )
        terminal.hang_up()
        while terminal.read():
            pass
        assert process.wait(60) == 0
        lines = terminal.written.replace(b"\r\n", b"\n").split(b"\n")
    at = begun(said)[0]
    before = lines.index(bytes([said[at - 1]]))
    assert lines[before + 1] == b"?", said


def test_draws_depend_on_the_seed_alone(daemon: Daemon, byte_model: Path) -> None:
    words = ("generate", str(byte_model), "--prompt", PROMPT, "--temperature", "1.5")
    first = ctl(daemon, *words, "--seed", "1")
    assert first.code == 0, first.err
    assert ctl(daemon, *words, "--seed", "1").out == first.out
    assert ctl(daemon, *words, "--seed", "2").out != first.out


def test_a_tokenizer_that_is_not_known_is_named_and_tokens_are_taken(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(byte_model, copy)
    file = copy / "tokenizer.json"
    for text, told in (
        ("{}", "it has no model"),
        ('{"normalizer": {"type": "Nmt"}}', "the normalizer 'Nmt'"),
    ):
        file.write_text(text)
        ended = ctl(daemon, "generate", str(copy), "--prompt", PROMPT)
        assert ended.code == 10
        assert told in ended.err
        assert "--tokens" in ended.err
    file.rename(copy / "tokenizer.model")
    ended = ctl(daemon, "generate", str(copy), "--prompt", PROMPT)
    assert ended.code == 10
    assert "in another file" in ended.err
    words = ("--max-new-tokens", "4", "--json")
    of_tokens = ctl(daemon, "generate", str(copy), "--tokens", "256,84,104,101", *words)
    of_text = ctl(daemon, "generate", str(byte_model), "--prompt", "The", *words)
    item, other = (one.items()[0] for one in (of_tokens, of_text))
    assert item["tokens"] == other["tokens"]
    assert item["prompt_tokens"] == other["prompt_tokens"] == [256, *b"The"]


def test_text_is_tokens_by_the_models_own_tokenizer_and_comes_out_as_text(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    """Bytes once more, as a tokenizer.json: so the model says what it says without."""
    copy = tmp_path / "model"
    shutil.copytree(byte_model, copy)
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.add_special_tokens(["<begin>", "<end>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", 256)]
    )
    tokenizer.save(str(copy / "tokenizer.json"))
    for prompt in (PROMPT, "Straße \u00e4"):
        words = ("--prompt", prompt, "--max-new-tokens", "60", "--temperature", "1.5")
        own, bytewise = (
            ctl(daemon, "generate", str(directory), *words) for directory in (copy, byte_model)
        )
        assert own.code == 0, own.err
        assert own.out.decode() == bytewise.out.decode(errors="replace")
        (item,) = ctl(daemon, "generate", str(copy), *words, "--json").items()
        assert item["prompt_tokens"] == tokenizer.encode(prompt).ids
        assert item["text"] == tokenizer.decode(item["tokens"])


def test_what_it_goes_on_from_is_asked_for(daemon: Daemon, byte_model: Path) -> None:
    for words, told in (
        ((), "needs --prompt or --tokens"),
        (("--tokens", "1,x"), "'1,x' is no list of token ids"),
        (("--tokens", "1", "--prompt", "x"), "--prompt"),
    ):
        ended = ctl(daemon, "generate", str(byte_model), *words)
        assert ended.code == 2
        assert told in ended.err
