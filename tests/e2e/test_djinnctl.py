"""djinnctl against a daemon: tables, JSON, ids, exit codes; what a model says."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import djinn
import pytest
import torch
from private_daemon import BIN, Daemon, running
from transformers import LlamaForCausalLM

PROMPT = "The kernel "
NEW_TOKENS = 24


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: str

    def items(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        return json.loads(self.out)["items"]

    def table(self) -> list[list[str]]:
        assert self.code == 0, self.err
        return [line.split() for line in self.out.decode().splitlines()]

    def text(self) -> str:
        assert self.code == 0, self.err
        return self.out.decode().strip()


def ctl(daemon: Daemon, *words: str, stdout: int = subprocess.PIPE) -> Ended:
    done = subprocess.run(
        [str(BIN / "djinnctl"), *words],
        env={**os.environ, "DJINN_HOST": daemon.host},
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout or b"", done.stderr.decode())


@pytest.fixture
def loaded(daemon: Daemon, byte_model: Path) -> Iterator[str]:
    """The id of the byte model, pinned for the time of the test."""
    model = ctl(daemon, "load", str(byte_model)).text()
    yield model
    assert ctl(daemon, "unload", model).code == 0


def test_a_loaded_model_is_listed_until_it_is_unloaded(daemon: Daemon, byte_model: Path) -> None:
    assert len(ctl(daemon, "ps").table()) == 1
    model = ctl(daemon, "load", str(byte_model)).text()
    header, row = ctl(daemon, "ps").table()
    assert header == ["ID", "NAME", "STATE", "SIZE", "LEASES", "PINNED", "OWNER", "AGE"]
    assert row[:3] == [model, "bytes", "resident"]
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
    assert re.search(r"^DEVICE +OWNER +PID +STATE", text, re.MULTILINE)
    assert re.search(r"^cpu:0 ", text, re.MULTILINE)


def test_a_session_is_listed_and_shown(daemon: Daemon, session: djinn.Session) -> None:
    sessions = ctl(daemon, "sessions", "--json").items()
    mine = [item for item in sessions if item["pid"] == os.getpid() and item["granted_bytes"] > 0]
    assert len(mine) == 1
    (shown,) = ctl(daemon, "show", mine[0]["id"], "--json").items()
    assert shown["kind"] == "session"
    assert shown["id"] == mine[0]["id"]
    assert ctl(daemon, "show", mine[0]["id"]).table()[1] == ["kind", "session"]


def test_an_ambiguous_prefix_lists_its_candidates(daemon: Daemon) -> None:
    with ExitStack() as stack:
        # Of 17 ids two begin with the same digit.
        for number in range(17):
            stack.enter_context(daemon.connect(f"one of many {number}", observer=True))
        ids = [item["id"] for item in ctl(daemon, "sessions", "--json").items()]
        digits = [one[0] for one in ids]
        digit = next(d for d in digits if digits.count(d) > 1)
        ended = ctl(daemon, "show", digit)
        assert ended.code == 2
        assert "ambiguous" in ended.err
        listed = re.findall(r"\b[0-9a-f]{12}\b", ended.err)
        assert len(listed) > 1
        assert len(set(listed) - set(ids)) <= 1  # djinnctl's own session may be among them
        assert len(ended.err.splitlines()) <= 3


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["ps", "extra"]),
        (2, ["show", "not-an-id"]),
        (4, ["show", "ffffffffffff"]),
        (4, ["unload", "ffffffffffff"]),
        (4, ["load", "/nonexistent"]),
    ],
)
def test_exit_codes(daemon: Daemon, code: int, words: list[str]) -> None:
    ended = ctl(daemon, *words)
    assert ended.code == code
    assert ended.out == b""
    assert ended.err


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
    (item,) = ctl(daemon, *words, "--json").items()
    assert bytes(token for token in item["tokens"] if token < 256) == expected


def test_draws_depend_on_the_seed_alone(daemon: Daemon, byte_model: Path) -> None:
    words = ("generate", str(byte_model), "--prompt", PROMPT, "--temperature", "1.5")
    first = ctl(daemon, *words, "--seed", "1")
    assert first.code == 0, first.err
    assert ctl(daemon, *words, "--seed", "1").out == first.out
    assert ctl(daemon, *words, "--seed", "2").out != first.out


def test_a_model_with_a_tokenizer_is_left_to_the_python_package(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(byte_model, copy)
    (copy / "tokenizer.json").write_text("{}")
    ended = ctl(daemon, "generate", str(copy), "--prompt", PROMPT)
    assert ended.code == 1
    assert "Python package" in ended.err
