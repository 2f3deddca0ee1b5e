# SPDX-License-Identifier: Apache-2.0
"""What each verb of djinnctl prints as JSON, field by field; top, gc, drain, resume and events."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import Ended, ctl, events_of, wait_until_hashed
from private_daemon import BIN, Daemon, running, wait_until

PROMPT = [256, *b"The kernel "]
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "stop_tokens": []}
LONG: dict[str, Any] = {"max_new_tokens": 900, "stop_tokens": []}
FAILED = 1
NO_SUCH_OBJECT = 4
BUSY = 6
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
TIMES = {"time", "started", "loaded", "expires"}
STAGING_BYTES = 1 << 20
RECORD_SEPARATOR = b"\x1e"
EVENTS_A_PAGE = 64  # ipc/limits.h


def times(factor: int) -> str:
    """A program that no other test has."""
    return f"""srg 1 "times {factor}"
input %x : float32[4]
%y = aten::mul.Scalar(%x, {factor})
output %y
"""


# --- the golden record: the fields of an item in their order, and what kind of value each has
#
# A list has items of one kind. "id": 12 hex digits. "time": RFC 3339, nanoseconds, Z. "hash":
# SHA-256. "or null": not known, or there is none.

Shape = str | list[Any] | dict[str, Any]

WORKER: dict[str, Shape] = {
    "device": "string",
    "owner": "string",
    "pid": "integer",
    "state": "string",
    "threads": "integer",
    "restarts": "integer",
    "landlock_abi": "integer",
    "seccomp": "bool",
    "slab_bytes": "integer",
    "runs": "integer",
    "planned_runs": "integer",
    "plan_misses": "integer",
    "runs_repeated": "integer",
    "runs_together": "integer",
    "turn_ms": "integer",
    "overruns": "integer",
    "refused": "integer",
    "tokens": "integer",
}
USER: dict[str, Shape] = {
    "owner": "string",
    "memory_bytes": "integer",
    "memory_max_bytes": "null",  # nothing bounds it
    "pinned_bytes": "integer",
    "pinned_max_bytes": "null",  # nothing bounds an administrator
    "sessions": "integer",
    "sessions_max": "integer",
    "models": "integer",
    "models_max": "integer",
}
STATUS: dict[str, Shape] = {
    "version": "string",
    "started": "time",
    "memory_total_bytes": "integer",
    "memory_granted_bytes": "integer",
    "memory_models_bytes": "integer",
    "memory_sessions_bytes": "integer",
    "memory_lanes_bytes": "integer",
    "sessions": "integer",
    "models": "integer",
    "programs": "integer",
    "descriptors": "integer",
    "bytes_read": "integer",
    "buffered_reads": "integer",
    "compared_opens": "integer",
    "workers": [WORKER],
    "draining": "bool",
    "descriptors_closing": "integer",
    "data_sessions": "integer",
    "quota": "null",
    "users": [USER],
    "spill_fault": "null",
}
SCHEDULE: dict[str, Shape] = {
    "device": "string",
    "owner": "string",
    "policy": "string",
    "decisions": [
        {
            "number": "integer",
            "time": "time",
            "session": "id",
            "class": "string",
            "reason": "string",
            "ready": "integer",
            "lag_ns": "integer",
            "deadline_ns": "integer",
            "predicted_ns": "integer",
            "measured_ns": "integer",
            "paused": "null or id",
        }
    ],
}
HELD: dict[str, Shape] = {"id": "id", "name": "string", "bytes": "integer"}
SESSION: dict[str, Shape] = {
    "id": "id",
    "name": "string",
    "owner": "string",
    "pid": "integer",
    "started": "time",
    "granted_bytes": "integer",
    "models": "integer",
    "sequences": "integer",
    "steps": "integer",
    "running": "bool",
    "state": "string",
    "wait": "string",
    "shared_bytes": "integer",
    "tier": "string",
    "graphs_run": "integer",
    "programs_run": "integer",
    "generations": "integer",
    "failed": "integer",
    "tokens": "integer",
    "plan_misses": "integer",
    "bytes_in": "integer",
    "bytes_out": "integer",
    "stated_tier0_calls": "integer",
    "stated_tier1_calls": "integer",
    "stated_tier2_calls": "integer",
    "stated_local_models": "integer",
    "device": "string",
    "held_models": [HELD],
}
HOLDER: dict[str, Shape] = {
    "session": "id",
    "owner": "string",
    "pid": "integer",
    "name": "string",
}
NAME: dict[str, Shape] = {"owner": "string", "name": "string", "path": "string or null"}
MODEL: dict[str, Shape] = {
    "id": "id",
    "name": "string",
    "owner": "string",
    "state": "string",
    "bytes": "integer",
    "bytes_loaded": "integer",
    "files": "integer",
    "leases": "integer",
    "pinned": "bool",
    "sha256": "hash or null",
    "loaded": "time or null",
    "device": "string",
    "until": "string",
    "keep_alive_seconds": "number or null",
    "expires": "time or null",
    "path": "string or null",
    "plan": "null",
    "huge_bytes": "integer",
    "copies": "null",  # of GPUs, a list
    "numerics": "null",  # of one that was loaded with any, a string
    "holders": [HOLDER],
    "pinned_by": ["string"],
    "names": [NAME],
}
DTYPE: dict[str, Shape] = {"dtype": "string", "tensors": "integer", "bytes": "integer"}
UNUSED_MODEL: dict[str, Shape] = {**MODEL, "holders": "array", "pinned_by": "array"}
DEVICE: dict[str, Shape] = {
    "device": "string",
    "name": "string",
    "used_bytes": "integer",
    "total_bytes": "integer",
    "planned_bytes": "integer",
    "lanes": "integer",
    "state": "string",
    "huge_bytes": "integer",
    "huge_pages": "string or null",
    "isa": "string or null",
    "driver": "null",  # a string of a GPU, as the next
    "reason": "null",
    "hardware_bytes": "null",  # an integer of a GPU, as the next two
    "hardware_free_bytes": "null",
    "uploaded_bytes": "null",
}
KERNELS: dict[str, Shape] = {
    "device": "string",
    "dtype": "string",
    "weights": "string",
    "rows": "string",
    "own_flops_per_second": "null",  # an integer, as all that follow, where it was measured
    "library_flops_per_second": "null",
    "own_bytes_per_second": "null",
    "read_bytes_per_second": "null",
}
POOL: dict[str, Shape] = {
    "device": "string",
    "pool": "string",
    "reserved_bytes": "integer",
    "mapped_bytes": "integer",
    "cached_bytes": "integer",
    "evictable_bytes": "integer",
    "pinned_bytes": "integer",
}
PROGRAM: dict[str, Shape] = {
    "id": "id",
    "model": "id or null",
    "owner": "string",
    "device": "string",
    "state": "string",
    "graph_bytes": "integer",
    "outputs": "integer",
    "sessions": "integer",
    "name": "string",
    "workload": "string or null",
    "numerics": "string or null",
    "fast_nodes": "integer",
}
COST: dict[str, Shape] = {
    "flops": "integer",
    "bytes_read": "integer",
    "bytes_written": "integer",
}
GRAPH: dict[str, Shape] = {
    "id": "id",
    "asked": "string",
    "fast_nodes": "integer",
    "nodes": "integer",
    "passes": [
        {
            "name": "string",
            "made": "integer",
            "left": "integer",
            "reasons": [{"reason": "string", "nodes": "integer"}],
        }
    ],
    "at": [{"symbol": "string", "value": "integer"}],
    "cost": COST,
    "not_counted": "integer",
    "roles": [{"role": "string", "nodes": "integer", **COST}],
    "annotations": [
        {
            "op": "string",
            "role": "string",
            "phase": "string",
            "residency": "string",
            "modality": "string",
            **COST,
            "edges": [{"value": "integer", "bytes": "integer", "criticality": "integer"}],
        }
    ],
    "text": "string",
}
EVENT: dict[str, Shape] = {
    "number": "integer",
    "time": "time",
    "event": "string",
    "text": "string",
    "session": "id or null",
    "model": "id or null",
    "device": "string or null",
    "bytes": "integer or null",
    "error": "string or null",
    "uid": "integer or null",
    "path": "string or null",
    "reason": "string or null",
}
LOADED: dict[str, Shape] = {
    "id": "id",
    "name": "string",
    "bytes": "integer",
    "was_resident": "bool",
    "pinned": "bool",
    "numerics": "null",  # where any were said, a string
}
IMPORTED: dict[str, Shape] = {
    "name": "string",
    "files": "integer",
    "bytes": "integer",
    "contents": "hash",
}
PUBLISHED: dict[str, Shape] = {
    "name": "string",
    "bytes": "integer",
    "files": "integer",
    "readers": "string",
    "owner": "string",
    "since": "time",
    "contents": "hash",
}
UNLOADED: dict[str, Shape] = {"id": "id", "name": "string", "bytes": "integer"}
EVICTED: dict[str, Shape] = {"id": "id", "name": "string", "bytes": "integer", "to": "string"}
PINNED: dict[str, Shape] = {"id": "id", "name": "string", "pinned": "bool"}
STEERED: dict[str, Shape] = {"id": "id", "name": "string", "pid": "integer"}
DRAINING: dict[str, Shape] = {"draining": "bool"}
COLLECTED: dict[str, Shape] = {"programs": "integer", "workers": "integer", "bytes": "integer"}
GENERATED: dict[str, Shape] = {
    "prompt": "string",
    "text": "string",
    "prompt_tokens": ["integer"],
    "tokens": ["integer"],
    "random_offset": "integer",
    "error": "null",  # of a row that failed
    "message": "null",
}
SETTING: dict[str, Shape] = {
    "key": "string",
    "value": "string",
    "in_force": "null",
    "origin": "string or null",
}
REPORT: dict[str, Shape] = {
    "path": "string",
    "files": ["string"],
    "missing": [{"what": "string", "why": "string"}],
    "bytes": "integer",
    "archive": "null",  # a string with --tar
}
VERSIONS: dict[str, Shape] = {"djinnctl": "string", "djinnd": "string or null"}
CERTIFICATE: dict[str, Shape] = {
    "principal": "string",
    "serial": "string",
    "since": "time",
    "until": "time",
    "state": "string",
    "revoked": "time or null",
}
REVOKED = {**CERTIFICATE, "revoked": "time"}
ENROLLED: dict[str, Shape] = {
    **CERTIFICATE,
    "revoked": "null",
    "address": "string",
    "gate": "string",
    "has_key": "bool",
    "file": "null",  # it is in the profile's place
    "profile": "string",
}
AUTHORITY: dict[str, Shape] = {
    "directory": "string",
    "trust_domain": "string",
    "gate": "string",
    "addresses": ["string"],
    "authority_until": "time",
    "gate_until": "time",
    "list_until": "time",
}
HOST: dict[str, Shape] = dict.fromkeys(("name", "host", "address", "gate", "file"), "string")

# The command line, where {w.NAME} is of the test's World; the schema; an item.
GOLDEN: list[tuple[str, str, dict[str, Shape]]] = [
    ("status", "djinn.status.v1", STATUS),
    ("sessions", "djinn.sessions.v1", SESSION),
    ("ps", "djinn.ps.v1", MODEL),
    ("devices", "djinn.devices.v1", DEVICE),
    ("devices --kernels", "djinn.kernels.v1", KERNELS),
    ("mem", "djinn.mem.v1", POOL),
    ("programs", "djinn.programs.v1", PROGRAM),
    ("top -n 1", "djinn.top.v1", {**STATUS, "time": "time", "sessions_list": [SESSION]}),
    ("events", "djinn.events.v1", EVENT),
    ("show {w.session}", "djinn.show.v1", {"kind": "string", **SESSION}),
    ("show {w.spare}", "djinn.show.v1", {"kind": "string", **UNUSED_MODEL, "dtypes": [DTYPE]}),
    ("show --schedule", "djinn.schedule.v1", SCHEDULE),
    ("show --schedule {w.session}", "djinn.schedule.v1", SCHEDULE),
    ("show --graph {w.prefill}", "djinn.graph.v1", GRAPH),
    ("load {w.copy}", "djinn.load.v1", LOADED),
    ("unload {w.spare}", "djinn.unload.v1", UNLOADED),
    ("import {w.copy} --name {w.name}", "djinn.import.v1", IMPORTED),
    ("models", "djinn.models.v1", PUBLISHED),
    ("models rm {w.published}", "djinn.models-rm.v1", {"name": "string"}),
    ("evict {w.spare}", "djinn.evict.v1", EVICTED),
    ("evict --dry-run {w.spare}", "djinn.ps.v1", UNUSED_MODEL),
    ("pin {w.spare}", "djinn.pin.v1", PINNED),
    ("unpin {w.spare}", "djinn.unpin.v1", PINNED),
    ("cancel {w.talker}", "djinn.cancel.v1", STEERED),
    ("terminate {w.victim}", "djinn.terminate.v1", STEERED),
    ("drain", "djinn.drain.v1", DRAINING),
    ("resume", "djinn.resume.v1", DRAINING),
    ("gc", "djinn.gc.v1", COLLECTED),
    ("generate {w.directory} --prompt The --max-new-tokens 4", "djinn.generate.v1", GENERATED),
    ("gate init --credentials {w.fresh}", "djinn.gate-init.v1", AUTHORITY),
    ("gate enrol ann --credentials {w.gate}", "djinn.gate-enrol.v1", ENROLLED),
    ("gate revoke bob --credentials {w.gate}", "djinn.gate-revoke.v1", REVOKED),
    ("gate list --credentials {w.gate}", "djinn.gate-list.v1", CERTIFICATE),
    ("gate renew --credentials {w.gate}", "djinn.gate-renew.v1", AUTHORITY),
    ("host add {w.profile}", "djinn.host-add.v1", HOST),
    ("config show --root {w.root}", "djinn.config.v1", SETTING),
    ("diag --output {w.report}", "djinn.diag.v1", REPORT),
    ("version", "djinn.version.v1", VERSIONS),
]
# What they print is no list of items: --json changes nothing.
WITHOUT_JSON = ["completion bash", "help"]


# --- how an answer is compared with it

KINDS: dict[type, str] = {
    bool: "bool",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
STRINGS = {"id": r"[0-9a-f]{12}", "hash": r"[0-9a-f]{64}", "time": TIME}


def kind_of(value: Any) -> str:
    if not isinstance(value, str):
        return KINDS[type(value)]
    return next((kind for kind, text in STRINGS.items() if re.fullmatch(text, value)), "string")


def faults(golden: Shape, values: list[Any], path: str) -> list[str]:
    """How the values of a field differ from its record, a sentence each. One must be no null."""
    if not values:
        return [f"{path} has no value"]
    kinds = {kind_of(value) for value in values}
    if isinstance(golden, str):
        expected = golden.split(" or ")
        wrong = sorted(kinds - set(expected)) or [] if expected[0] in kinds else sorted(kinds)
        return [f"{path} was {golden} and is {' or '.join(wrong)}"] if wrong else []
    if kinds != {KINDS[type(golden)]}:
        return [f"{path} was {KINDS[type(golden)]} and is {' or '.join(sorted(kinds))}"]
    if isinstance(golden, list):
        return faults(golden[0], [one for value in values for one in value], f"{path}[]")
    return field_faults(golden, values, path)


def field_faults(golden: dict[str, Shape], values: list[dict[str, Any]], path: str) -> list[str]:
    gone = [name for name in golden if any(name not in value for value in values)]
    new = dict.fromkeys(name for value in values for name in value if name not in golden)
    found = [f"{path}.{name} is gone" for name in gone]
    found += [f"{path}.{name} is new: add it to the record" for name in new]
    if not found and any(list(value) != list(golden) for value in values):
        found.append(f"{path}: the order of the fields was {list(golden)}")
    for name in golden.keys() - set(gone):
        found += faults(golden[name], [value[name] for value in values], f"{path}.{name}")
    return found


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda item: item, None),
        (lambda item: {"n": 1}, ".sub is gone"),
        (lambda item: {**item, "more": 1}, ".more is new"),
        (lambda item: dict(reversed(item.items())), ": the order of the fields was ['n', 'sub']"),
        (lambda item: {**item, "n": "1"}, ".n was integer or null and is string"),
        (lambda item: {**item, "n": True}, ".n was integer or null and is bool"),
        (lambda item: {**item, "n": 1.0}, ".n was integer or null and is number"),
        (lambda item: {**item, "n": None}, ".n was integer or null and is null"),
        (lambda item: {**item, "sub": []}, ".sub[] has no value"),
        (lambda item: {**item, "sub": {}}, ".sub was array and is object"),
        (lambda item: {**item, "sub": [{"at": "2026-03-01"}]}, ".sub[].at was time and is string"),
    ],
)
def test_each_change_of_a_field_is_told(
    change: Callable[[dict[str, Any]], dict[str, Any]], fault: str | None
) -> None:
    golden: Shape = {"n": "integer or null", "sub": [{"at": "time"}]}
    item = {"n": 1, "sub": [{"at": "2026-03-01T12:00:00.123456789Z"}]}
    found = faults(golden, [change(item)], "verb")
    assert len(found) == (fault is not None)
    assert all(one.startswith(f"verb{fault}") for one in found)


# --- the golden tests


@dataclass
class World:
    """A daemon in which each field of each list has a value, and what a command line can name."""

    daemon: Daemon
    stack: ExitStack
    directory: Path  # of a model that a session holds
    copy: Path  # of the spare
    root: Path  # of configuration files
    report: Path  # where there is nothing yet
    session: str = ""  # which holds a model, and ran
    spare: str = ""  # a model that nobody holds

    def connect(self, name: str) -> djinn.Session:
        return self.stack.enter_context(self.daemon.connect(name, staging_bytes=STAGING_BYTES))

    @property
    def prefill(self) -> str:
        """The program of a prompt."""
        programs = ctl(self.daemon, "programs", "-j").items()
        return next(str(one["id"]) for one in programs if one["workload"] == "prefill")

    @property
    def name(self) -> str:
        """For one more model in the store."""
        return f"n{time.monotonic_ns()}"

    @property
    def published(self) -> str:
        return ctl(self.daemon, "import", str(self.copy), "--name", self.name).text()

    @property
    def fresh(self) -> Path:
        """Where there is no authority yet."""
        return self.root / "fresh"

    @property
    def gate(self) -> Path:
        """Where one has enrolled and revoked somebody, and enrolled them again."""
        where = self.root / "gate"
        for words in ("init", "enrol bob", "revoke bob", "enrol bob"):
            command = [*words.split(), "--credentials", str(where)]
            assert ctl(self.daemon, "gate", *command).code == 0
        return where

    @property
    def profile(self) -> Path:
        path = self.root / "bob.pem"
        command = ["enrol", "bob", "--credentials", str(self.gate), "--out", str(path)]
        assert ctl(self.daemon, "gate", *command).code == 0
        return path

    @property
    def victim(self) -> str:
        """A session for whoever ends it."""
        return self.connect("victim").id

    @property
    def talker(self) -> str:
        """A session in the midst of a generation."""
        session = self.connect("talker")
        generator = djinn.Generator(session, self.directory)
        self.stack.enter_context(ThreadPoolExecutor()).submit(generator.generate, [PROMPT], **LONG)
        return session.id


@pytest.fixture
def world(daemon: Daemon, byte_model: Path, tmp_path: Path) -> Iterator[World]:
    copy, root = tmp_path / "spare", tmp_path / "root"
    shutil.copytree(byte_model, copy)
    (root / "etc/djinn").mkdir(parents=True)
    (root / "etc/djinn/djinnd.conf").write_text('[memory]\nlimit = "50%"\n')
    with ExitStack() as stack:
        one = World(daemon, stack, byte_model, copy, root, tmp_path / "report")
        session = one.connect("reader")
        one.session = session.id
        generator = djinn.Generator(session, byte_model)
        generator.generate([PROMPT], **GREEDY)
        assert ctl(daemon, "pin", generator.model.id).code == 0
        session.define(times(2))
        one.spare = ctl(daemon, "load", "--no-pin", str(copy)).text()
        assert one.published
        wait_until_hashed(daemon)
        assert ctl(daemon, "terminate", one.victim).code == 0  # an event with an error
        (tmp_path / "no-model.safetensors").write_bytes(b"short")
        with pytest.raises(djinn.Error):  # an event with a path and a reason
            session.load(tmp_path / "no-model.safetensors")
        try:
            yield one
        finally:
            assert ctl(daemon, "resume").code == 0
            assert ctl(daemon, "unpin", generator.model.id).code == 0
            if ctl(daemon, "show", one.spare).code == 0:
                assert ctl(daemon, "unload", one.spare).code == 0


def answer(world: World, words: str) -> Ended:
    """What it says to that and --json, as soon as there is what the words are about: a run must be
    in flight to be cancelled."""
    command = [word.format(w=world) for word in words.split()]
    ended: list[Ended] = []

    def is_there() -> bool:
        ended.append(ctl(world.daemon, *command, "--json"))
        return ended[-1].code != NO_SUCH_OBJECT

    wait_until(is_there, f"{words}: there is such an object")
    assert ended[-1].code == 0, f"{words}: {ended[-1].err}"
    return ended[-1]


def documents(out: bytes) -> list[dict[str, Any]]:
    """Of one JSON text, or of a JSON sequence."""
    return [json.loads(text) for text in out.split(RECORD_SEPARATOR) if text.strip()]


@pytest.mark.parametrize(("words", "schema", "golden"), GOLDEN, ids=[one[0] for one in GOLDEN])
def test_a_verbs_json_has_the_fields_that_it_always_had(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    schema: str,
    golden: dict[str, Shape],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # diag is to find no systemctl, on any machine
    told = documents(answer(world, words).out)
    envelopes = {(tuple(document), document["schema"]) for document in told}
    assert envelopes == {(("schema", "items"), schema)}
    items = [item for document in told for item in document["items"]]
    found = faults(golden, items, words)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("words", WITHOUT_JSON)
def test_a_verb_without_items_prints_the_same_with_json(daemon: Daemon, words: str) -> None:
    plain = ctl(daemon, *words.split())
    assert (plain.code, plain.out != b"") == (0, True)
    assert ctl(daemon, *words.split(), "--json") == plain


def test_each_verb_has_a_golden_record(daemon: Daemon) -> None:
    listed = ctl(daemon, "--help").text().partition("Verbs:\n")[2]
    verbs = set(re.findall(r"^  (\S+)  ", listed, re.MULTILINE))
    recorded = {words.split()[0] for words in [one[0] for one in GOLDEN] + WITHOUT_JSON}
    assert "status" in verbs
    assert verbs == recorded, "a verb without a record, or a record without a verb"


def test_no_help_is_wider_than_a_terminal(daemon: Daemon) -> None:
    helps = [ctl(daemon, "--help").text()]
    verbs = re.findall(r"^  (\S+)  ", helps[0].partition("Verbs:\n")[2], re.MULTILINE)
    assert "status" in verbs
    inner = ["config show", "host add", "models rm"]
    inner += [f"gate {verb}" for verb in ("init", "enrol", "revoke", "list", "renew")]
    helps += [ctl(daemon, *words.split(), "--help").text() for words in [*verbs, *inner]]
    helps.append(subprocess.check_output(["djinnd", "--help"], text=True))
    assert [line for one in helps for line in one.splitlines() if len(line) > 80] == []
    assert all("Usage: djinn" in one for one in helps)


def test_no_record_has_sizes_or_times_in_words() -> None:
    def check(golden: Shape, path: str) -> None:
        if isinstance(golden, list):
            return check(golden[0], path)
        if isinstance(golden, dict):
            for name, field in golden.items():
                check(field, f"{path}.{name}")
            return None
        name = path.rpartition(".")[2]
        if "bytes" in name.split("_"):
            assert golden.startswith("integer") or golden == "null", path
        if name in TIMES:
            assert golden.startswith("time"), path
        return None

    for words, _, golden in GOLDEN:
        check(golden, words)


# --- commands that go on until they are ended


class Talk:
    """djinnctl as it goes on, with all that it has said so far."""

    def __init__(self, daemon: Daemon, *words: str, signals: str = "--default-signal=INT") -> None:
        # A test may run where SIGINT is ignored, as behind a shell's `&`.
        self.process = subprocess.Popen(
            ["env", signals, str(BIN / "djinnctl"), *words],
            env={**os.environ, "DJINN_HOST": daemon.host},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.pipe, self.errors = self.process.stdout, self.process.stderr
        os.set_blocking(self.pipe.fileno(), False)
        self.said = b""

    def hear(self) -> str:
        self.said += self.pipe.read() or b""
        return self.said.decode()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.hear(), f"djinnctl says {text}")

    def wait_for_its_end(self) -> tuple[int, str]:
        """Its exit status, and what it said on standard error."""
        return self.process.wait(60), self.errors.read().decode()

    def end_by(self, number: signal.Signals) -> None:
        """A signal ends it at once, and it has nothing to say to that."""
        self.process.send_signal(number)
        assert self.wait_for_its_end() == (-number, "")


@contextmanager
def talking(daemon: Daemon, *words: str, **options: str) -> Iterator[Talk]:
    talk = Talk(daemon, *words, **options)
    with talk.process:
        try:
            yield talk
        finally:
            talk.process.kill()


READER_GONE = {
    "SIGPIPE ends it": ("--default-signal=PIPE", -signal.SIGPIPE),
    "SIGPIPE is ignored": ("--ignore-signal=PIPE", FAILED),
}


def check_ended_with_its_reader(talk: Talk, expected: int) -> None:
    code, told = talk.wait_for_its_end()
    assert code == expected
    assert len(told.splitlines()) <= 3, told


# --- top


def views(text: str) -> list[list[list[str]]]:
    """The table of each view, with its header."""
    parts = text.strip().split("\n\n")
    assert all(summary.startswith("djinnd ") for summary in parts[::2]), text
    return [[line.split() for line in table.splitlines()] for table in parts[1::2]]


def test_top_prints_as_many_views_as_it_is_told(daemon: Daemon, session: djinn.Session) -> None:
    shown = views(ctl(daemon, "top", "--batch", "-n", "2", "-d", "0.1").text())
    assert len(shown) == 2
    for header, *rows in shown:
        assert header[:6] == ["SESSION", "USER", "PID", "APP", "STATE", "WAIT"]
        assert [row[0] for row in rows].count(session.id) == 1
    assert len(views(ctl(daemon, "top").text())) == 1  # nobody is there to end it


def test_top_sorts_by_memory_or_age(daemon: Daemon) -> None:
    with (
        daemon.connect("old", staging_bytes=STAGING_BYTES) as old,
        daemon.connect("large", staging_bytes=4 * STAGING_BYTES) as large,
    ):
        orders = {"memory": [large.id, old.id], "age": [old.id, large.id]}
        for order, expected in orders.items():
            (view,) = views(ctl(daemon, "top", "-b", "-n", "1", f"--sort={order}").text())
            assert [row[0] for row in view if row[0] in expected] == expected, order


def test_top_as_json_is_a_document_a_view(daemon: Daemon, session: djinn.Session) -> None:
    out = ctl(daemon, "top", "-j", "-n", "2", "-d", "0.1").text()
    first, second = [json.loads(line)["items"] for line in out.splitlines()]
    for (item,) in (first, second):
        assert session.id in [one["id"] for one in item["sessions_list"]]
    assert first[0]["time"] < second[0]["time"]


def test_top_without_an_end_ends_by_a_signal(daemon: Daemon) -> None:
    with talking(daemon, "top", "--batch", "-d", "0.1") as talk:
        wait_until(lambda: talk.hear().count("\nSESSION ") > 2, "it goes on")
        talk.end_by(signal.SIGINT)


@pytest.mark.parametrize(("signals", "code"), READER_GONE.values(), ids=READER_GONE)
def test_top_without_an_end_ends_with_its_reader(daemon: Daemon, signals: str, code: int) -> None:
    with talking(daemon, "top", "--batch", "-d", "0.1", signals=signals) as talk:
        talk.wait_for("\nSESSION ")
        talk.pipe.close()
        check_ended_with_its_reader(talk, code)


# --- gc


def users_of(daemon: Daemon, program: str) -> int | None:
    """How many sessions have it; None when it is given up."""
    programs = {item["id"]: item for item in ctl(daemon, "programs", "-j").items()}
    return programs[program]["sessions"] if program in programs else None


def test_gc_gives_up_programs_of_nobody_and_no_other(daemon: Daemon, byte_model: Path) -> None:
    x = np.arange(4, dtype=np.float32)
    with daemon.connect("reader") as session:
        generator = djinn.Generator(session, byte_model)
        said = generator.generate([PROMPT], **GREEDY).tokens
        kept = session.define(times(3))
        before = {item["id"] for item in ctl(daemon, "programs", "-j").items()}
        with daemon.connect("brief") as brief:
            brief.define(times(5))
            listed = {item["id"] for item in ctl(daemon, "programs", "-j").items()}
            (left,) = listed - before
            assert ctl(daemon, "gc").code == 0
            assert users_of(daemon, left) == 1
        wait_until(lambda: users_of(daemon, left) == 0, "nobody has it")
        (freed,) = ctl(daemon, "gc", "-j").items()
        assert freed["programs"] >= 1
        assert freed["workers"] == 0
        assert users_of(daemon, left) is None
        # What is in use is as it was.
        assert np.array_equal(kept(x=x)["y"], 3 * x)
        assert generator.generate([PROMPT], **GREEDY).tokens == said
        (shown,) = ctl(daemon, "show", generator.model.id, "-j").items()
        assert (shown["state"], shown["leases"] > 0) == ("resident", True)


def test_gc_ends_workers_of_users_without_a_session() -> None:
    def pool_of_lanes(daemon: Daemon) -> int:
        return next(
            item["reserved_bytes"]
            for item in ctl(daemon, "mem", "-j").items()
            if item["pool"] == "lanes"
        )

    x = np.arange(4, dtype=np.float32)
    with running() as daemon:
        with daemon.connect("first") as session:
            first = session.run_once(times(3), x=x)
            assert ctl(daemon, "gc", "-j").items()[0]["workers"] == 0
        wait_until(
            lambda: "first" not in [one["name"] for one in ctl(daemon, "sessions", "-j").items()],
            "it is gone",
        )
        held = pool_of_lanes(daemon)
        (freed,) = ctl(daemon, "gc", "-j").items()
        assert freed["workers"] == 1
        assert freed["bytes"] == held > 0
        assert pool_of_lanes(daemon) == 0
        assert ctl(daemon, "status", "-j").items()[0]["workers"] == []
        assert ctl(daemon, "gc", "-j").items() == [{"programs": 0, "workers": 0, "bytes": 0}]
        with daemon.connect("second") as session:
            second = session.run_once(times(3), x=x)
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_gc_says_what_it_did_as_a_table(daemon: Daemon) -> None:
    header, row = ctl(daemon, "gc").table()
    assert header == ["PROGRAMS", "WORKERS", "FREED"]
    assert row[2:] in (["0", "B"], [row[2], "KiB"], [row[2], "MiB"], [row[2], "GiB"])


# --- drain and resume


@contextmanager
def drained(daemon: Daemon) -> Iterator[None]:
    done = ctl(daemon, "drain")
    try:
        assert (done.code, done.out) == (0, b"")
        assert done.err.startswith("djinnctl: djinnd is draining; ")
        yield
    finally:
        drains = is_draining(daemon)
        ended = ctl(daemon, "resume")
    said = "" if drains else "djinnctl: djinnd was not draining\n"
    assert (ended.code, ended.out, ended.err) == (0, b"", said)


def is_draining(daemon: Daemon) -> bool:
    (status,) = ctl(daemon, "status", "-j").items()
    told = ["draining", "yes:", "no", "new", "sessions", "and", "models"]
    assert (told in ctl(daemon, "status").table()) == status["draining"]
    return bool(status["draining"])


def test_a_drain_refuses_new_sessions_until_it_is_resumed(daemon: Daemon, byte_model: Path) -> None:
    words = ("generate", str(byte_model), "--prompt", "The ", "--max-new-tokens", "4")
    assert not is_draining(daemon)
    with drained(daemon):
        assert is_draining(daemon)
        with pytest.raises(djinn.Error, match="draining and takes no new session") as refused:
            daemon.connect("late")
        assert refused.value.code == "busy"
        ended = ctl(daemon, *words)
        assert (ended.code, ended.out) == (BUSY, b"")
        assert ended.err.startswith("djinnctl: djinnd is draining and takes no new session.\n")
        assert len(ended.err.splitlines()) <= 3
    assert not is_draining(daemon)
    assert ctl(daemon, *words).code == 0


def test_a_drain_refuses_models_that_are_not_there(
    daemon: Daemon, byte_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(byte_model, copy)
    there = ctl(daemon, "load", "--no-pin", str(byte_model)).text()
    with drained(daemon):
        ended = ctl(daemon, "load", "--no-pin", str(copy))
        assert (ended.code, ended.out) == (BUSY, b"")
        assert ended.err.startswith("djinnctl: djinnd is draining and loads no model.\n")
        assert ctl(daemon, "load", "--no-pin", str(byte_model)).text() == there
    fresh = ctl(daemon, "load", "--no-pin", str(copy)).text()
    assert ctl(daemon, "unload", fresh).code == 0


def test_a_drain_leaves_sessions_alone(
    daemon: Daemon, session: djinn.Session, byte_model: Path
) -> None:
    generator = djinn.Generator(session, byte_model)
    said = generator.generate([PROMPT], **GREEDY).tokens
    x = np.arange(4, dtype=np.float32)
    with drained(daemon):
        assert generator.generate([PROMPT], **GREEDY).tokens == said
        assert np.array_equal(session.define(times(7))(x=x)["y"], 7 * x)
        assert session.id in [item["id"] for item in ctl(daemon, "sessions", "-j").items()]


def test_to_drain_and_to_resume_twice_is_to_do_it_once(daemon: Daemon) -> None:
    def told() -> tuple[int, int]:
        return len(events_of(daemon, "draining")), len(events_of(daemon, "resumed"))

    drains, resumes = told()
    assert ctl(daemon, "resume").code == 0
    with drained(daemon), drained(daemon):
        pass
    assert told() == (drains + 1, resumes + 1)


# --- events


def last_event(daemon: Daemon) -> int:
    told = documents(ctl(daemon, "events", "-j").out)
    return max(item["number"] for document in told for item in document["items"])


def test_events_as_json_are_a_json_sequence(daemon: Daemon, session: djinn.Session) -> None:
    nothing, *records = ctl(daemon, "events", "-j").out.split(RECORD_SEPARATOR)
    assert nothing == b""
    assert all(record.endswith(b"\n") and record.count(b"\n") == 1 for record in records)
    numbers = [item["number"] for record in records for item in json.loads(record)["items"]]
    assert len(numbers) == len(records)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert session.id in [event["session"] for event in events_of(daemon, "session-new")]


def test_events_are_a_line_each(daemon: Daemon, session: djinn.Session) -> None:
    lines = ctl(daemon, "events").text().splitlines()
    assert all(re.match(rf"{TIME}  [a-z-]+  +\S", line) for line in lines)
    (mine,) = [line for line in lines if session.id in line]
    assert mine.split()[1] == "session-new"


def test_events_that_are_followed_come_as_they_happen(
    daemon: Daemon, session: djinn.Session
) -> None:
    with talking(daemon, "events", "--follow") as talk:
        talk.wait_for(session.id)
        with daemon.connect("passer-by") as later:
            talk.wait_for(f"session {later.id} of user ")
        talk.wait_for(f"session {later.id} is released")
        line, _ = [line for line in talk.hear().splitlines() if later.id in line]
        assert re.match(rf"{TIME}  session-new +session {later.id} ", line)
        talk.end_by(signal.SIGINT)


def test_who_only_looks_is_told_of_no_session_that_is_lost() -> None:
    with running() as host, talking(host, "events", "--follow") as talk:
        talk.wait_for("daemon-started")
        host.process.terminate()
        code, told = talk.wait_for_its_end()
    assert code == 3
    assert "The connection to djinnd is lost" in told
    assert "are gone" not in told


def test_events_that_are_followed_as_json_are_a_json_sequence(
    daemon: Daemon, session: djinn.Session
) -> None:
    with talking(daemon, "events", "-f", "-j") as talk:
        talk.wait_for(session.id)
        with daemon.connect("passer-by") as later:
            talk.wait_for(f'"session":"{later.id}"')
            wait_until(lambda: talk.hear().endswith("\n"), "the record is whole")
        items = [item for document in documents(talk.said) for item in document["items"]]
        (item,) = [item for item in items if item["session"] == later.id]
        assert item["event"] == "session-new"
        assert talk.said.count(RECORD_SEPARATOR) == len(items)
        talk.end_by(signal.SIGTERM)


def first_new_event(daemon: Daemon) -> int:
    """The number of the first one that `events -f --new` tells."""
    with talking(daemon, "events", "-f", "--new", "-j") as talk:

        def hears_of_a_session() -> bool:
            """One that came before djinnctl listened is none of the new ones."""
            daemon.connect("passer-by", staging_bytes=STAGING_BYTES).close()
            return talk.hear().endswith("\n")

        wait_until(hears_of_a_session, "it listens")
        return min(item["number"] for one in documents(talk.said) for item in one["items"])


def test_new_events_are_those_after_its_start() -> None:
    with running() as daemon:
        assert ctl(daemon, "events", "--new").text() == ""
        before = last_event(daemon)
        assert first_new_event(daemon) > before


def test_new_events_are_those_after_its_start_however_many_were_before() -> None:
    with running() as daemon:
        while last_event(daemon) <= 2 * EVENTS_A_PAGE:
            daemon.connect("passer-by", staging_bytes=STAGING_BYTES).close()
        before = last_event(daemon)
        assert first_new_event(daemon) > before


def test_the_last_events_are_as_many_as_are_asked_for() -> None:
    with running() as daemon:
        while last_event(daemon) <= 2 * EVENTS_A_PAGE:
            daemon.connect("passer-by", staging_bytes=STAGING_BYTES).close()
        with daemon.connect("last", staging_bytes=STAGING_BYTES) as session:
            released = f"session {session.id} is released"
        wait_until(lambda: released in ctl(daemon, "events").text(), "all have left")
        everything = ctl(daemon, "events").text().splitlines()
        for words, count in ((["-n", "3"], 3), (["-n3"], 3), (["--lines=3"], 3), (["-n"], 10)):
            last = ctl(daemon, "events", *words).text().splitlines()
            assert last == everything[-count:], words
        assert ctl(daemon, "events", "-n", "0").text() == ""
        assert ctl(daemon, "events", "-n", "100000").text().splitlines() == everything


def test_a_wrong_number_of_events_is_answered_with_what_to_type(daemon: Daemon) -> None:
    for wrong in ("x", "-3", "1.5", "99999999999999999999"):
        ended = ctl(daemon, "events", f"--lines={wrong}")
        assert (ended.code, ended.out) == (2, b"")
        assert f"'{wrong}' is no number of events" in ended.err
        assert "'djinnctl events -n 10'" in ended.err
    assert "did you mean '--lines'?" in ctl(daemon, "events", "--line", "3").err
    assert ctl(daemon, "events", "-n", "3", "--new").code == 2


@pytest.mark.parametrize(("signals", "code"), READER_GONE.values(), ids=READER_GONE)
def test_events_that_are_followed_end_with_their_reader(
    daemon: Daemon, session: djinn.Session, signals: str, code: int
) -> None:
    with talking(daemon, "events", "-f", signals=signals) as talk:
        talk.wait_for(session.id)
        talk.pipe.close()
        with daemon.connect("passer-by", staging_bytes=STAGING_BYTES):
            check_ended_with_its_reader(talk, code)
