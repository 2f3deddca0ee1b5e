# SPDX-License-Identifier: Apache-2.0
"""What djinnd tells Prometheus: its numbers move with what happens, never go back, and asking for
them hurts nobody."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, memory_in_use
from conversation import STAGING_BYTES, Talk
from private_daemon import DEADLINE_S, ROOT, THREADS, running, wait_until
from safetensors.numpy import save_file
from scrape import Scrape, ask, metric_names, promtool
from systemd_double import Systemd

METRICS = ROOT / "packaging/metrics"
RULES = METRICS / "djinnd.rules.yml"
DASHBOARD = METRICS / "grafana-dashboard.json"
SERIES_MIN = 50
CONNECTIONS = 8
REQUEST_BYTES_MAX = 4096
SCRAPE_S_MAX = 5.0
MIB = 1 << 20
PROMPT = [256, *b"The "]
DOUBLE = """srg 1 "double"
input %x "x" : float32[4]
%y = aten::add.Tensor(%x, %x)
output %y
"""


class Served:
    """A djinnd that tells its metrics."""

    def __init__(self, systemd: Systemd, *options: str) -> None:
        self.systemd = systemd
        self.address = systemd.listen_for_metrics()
        systemd.start("--user", "--threads", str(THREADS), *options)
        systemd.hear("READY=1")
        # djinnd waits for whom it tells how it goes.
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the end of the test
            self.systemd.hear("no message begins so", deadline_s=10 * DEADLINE_S)

    def scrape(self) -> Scrape:
        return Scrape(self.address)

    def eventually(self, condition: Callable[[Scrape], bool], what: str) -> Scrape:
        """The first scrape that fulfils it."""
        last: list[Scrape] = []

        def look() -> bool:
            last[:] = [self.scrape()]
            return condition(last[0])

        wait_until(look, what)
        return last[0]

    def connect_raw(self) -> socket.socket:
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), DEADLINE_S)


@pytest.fixture
def served(systemd: Systemd) -> Served:
    return Served(systemd)


# --- form


def test_an_idle_djinnd_tells_fifty_series_and_promtool_finds_no_fault(served: Served) -> None:
    scrape = served.scrape()
    series = [name for name, _ in scrape.values if not name.endswith("_bucket")]
    assert len(series) >= SERIES_MIN
    assert all(name.startswith("djinn_") for name in series)
    checked = subprocess.run(
        [promtool(), "check", "metrics"], input=scrape.text, text=True, capture_output=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def selectors(expression: str) -> list[tuple[str, dict[str, str]]]:
    """The series that an expression of PromQL names, with the labels that it compares for
    equality."""
    found = re.findall(r"\b(djinn_\w+)(?:\{([^}]*)\})?", expression)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels))) for name, labels in found]


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    of_panels = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = re.findall(r"expr: (?:>-)?(.*?)\n +(?:for|labels):", RULES.read_text(), re.DOTALL)
    assert len(of_panels) > 40 and len(rules) > 10
    return of_panels + rules


def test_alerts_and_dashboard_name_only_what_is_told(served: Served) -> None:
    scrape = served.scrape()
    for expression in expressions():
        for name, labels in selectors(expression):
            scrape(name, **labels)  # it fails where there is none
    told = {name for name, _ in scrape.values}
    assert metric_names(RULES) <= told and metric_names(DASHBOARD) <= told


def test_rules_and_dashboard_are_well_formed_and_each_alert_rises(tmp_path: Path) -> None:
    panels = tmp_path / "panels.yml"
    records = [
        {"record": f"panel{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": records}]}))
    tests = Path("tests/packaging/djinnd.rules_test.yml")
    for arguments in (
        ("check", "rules", str(RULES)),
        ("check", "rules", str(panels)),
        ("test", "rules", str(tests)),
    ):
        done = subprocess.run([promtool(), *arguments], cwd=ROOT, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    for alert in alerts:
        assert f"alertname: {alert}\n        exp_alerts" in (ROOT / tests).read_text(), alert


# --- values


def test_numbers_move_with_loads_runs_programs_and_tokens(served: Served, byte_model: Path) -> None:
    before = served.scrape()
    with served.systemd.connect() as session:
        generator = djinn.Generator(session, byte_model)
        program = session.define(DOUBLE)
        session.define(DOUBLE)  # which it knows itself
        no_fast_form = DOUBLE.replace('"double"', '"double" numerics "fast"')
        session.define(no_fast_form)
        with served.systemd.connect() as another:
            another.define(DOUBLE)
        with pytest.raises(djinn.Error):
            session.define(DOUBLE.replace("aten::add.Tensor", "aten::no_such"))
        for _ in range(3):
            program(x=np.ones(4, dtype=np.float32))
        generator.generate([PROMPT, PROMPT], max_new_tokens=20, stop_tokens=[])
        scrape = served.eventually(
            lambda s: (
                s("djinn_tokens_total") == before("djinn_tokens_total") + 40
                and s("djinn_sessions") == 1
            ),
            "40 tokens, and the other session is gone",
        )

        def rose(name: str, **labels: str) -> float:
            return scrape(name, **labels) - before(name, **labels)

        assert scrape("djinn_sessions") == 1
        assert scrape("djinn_models", state="resident") == 1
        assert scrape("djinn_model_leases") == 1
        assert rose("djinn_model_loads_total", result="ok") == 1
        assert rose("djinn_model_load_duration_seconds_count") == 1
        size = (byte_model / "model.safetensors").stat().st_size
        assert rose("djinn_model_load_bytes_total") >= 0.9 * size
        weights = scrape("djinn_memory_granted_bytes", section="persistent", kind="model")
        assert 0.9 * size < weights == scrape("djinn_memory_mapped_bytes", pool="weights")
        assert scrape("djinn_memory_granted_bytes", section="volatile") > 0
        (device,) = ctl(served.systemd, "devices", "-j").items()
        assert scrape("djinn_model_huge_bytes", device="cpu:0") == device["huge_bytes"]
        if device["huge_pages"] is not None:
            assert scrape("djinn_huge_pages_info", setting=device["huge_pages"]) == 1
        assert scrape("djinn_workers", state="ready") == 1

        assert rose("djinn_program_definitions_total", result="admitted") == 4
        assert rose("djinn_program_definitions_total", result="cached") == 1
        assert rose("djinn_program_definitions_total", result="refused") == 1
        assert rose("djinn_program_fast_total", result="fast") == 0
        assert rose("djinn_program_fast_total", result="exact") == 1
        assert scrape("djinn_programs", state="admitted") == 4
        assert rose("djinn_submissions_total", operation="run") == 3
        assert rose("djinn_run_duration_seconds_count") == 3
        assert rose("djinn_submissions_total", operation="generate") == 1
        submissions = rose("djinn_submissions_total") + rose("djinn_submissions_failed_total")
        assert rose("djinn_queue_duration_seconds_count") == submissions
        assert rose("djinn_runs_total") >= rose("djinn_planned_runs_total") >= 20
        assert rose("djinn_prompt_tokens_total") == 2 * len(PROMPT)
        assert rose("djinn_time_to_first_token_seconds_count") == 1
        assert rose("djinn_time_between_tokens_seconds_count") == 19
        assert rose("djinn_time_between_tokens_seconds_sum") > 0
        assert rose("djinn_ipc_bytes_total", peer="client", direction="received") > 0
        assert rose("djinn_crossed_bytes_total", direction="received") > 3 * 16
        assert rose("djinn_crossed_bytes_total", direction="sent") >= 3 * 16 + 20 * 64
        assert rose("djinn_events_total", kind="session-new") == 2
    served.eventually(
        lambda s: s("djinn_sessions") == 0 and s("djinn_model_leases") == 0, "the session has left"
    )


def weights_file(directory: Path, name: str, size: int) -> Path:
    path = directory / f"{name}.safetensors"
    save_file({name: np.zeros(size // 4, dtype=np.float32)}, path)
    return path


def test_evictions_are_told_with_their_reason(systemd: Systemd, tmp_path: Path) -> None:
    served = Served(systemd, "--memory", str(64 * MIB))
    with systemd.connect(observer=True) as session:
        for name in ("a", "b", "c"):  # two of which fit
            model = session.load(weights_file(tmp_path, name, 24 * MIB), pin=name == "c")
            model.close()
        scrape = served.eventually(
            lambda s: s("djinn_model_evictions_total", reason="pressure") == 1, "one gave way"
        )
        assert scrape("djinn_model_evicted_bytes_total") >= 24 * MIB
        assert scrape("djinn_models", state="resident") == 2
        assert scrape("djinn_memory_evictable_bytes") >= 24 * MIB
        assert scrape("djinn_memory_pinned_bytes") >= 24 * MIB
        session.unload(model)
        served.eventually(
            lambda s: s("djinn_model_evictions_total", reason="requested") == 1, "one was unloaded"
        )
        with pytest.raises(djinn.Error):
            session.load(weights_file(tmp_path, "d", 65 * MIB))
        served.eventually(
            lambda s: s("djinn_model_loads_total", result="failed") == 1, "one did not fit"
        )


def test_conversations_that_go_to_disk_and_come_back_are_told(
    systemd: Systemd, byte_model: Path, tmp_path: Path
) -> None:
    with running() as host, host.connect("alone", staging_bytes=STAGING_BYTES) as session:
        Talk(session, byte_model).turn()
        needed = memory_in_use(host)

    # So little is free that who is idle gives way.
    memory = ("--memory", str(needed * 114 // 100), "--spill-after-ms", "200")
    served = Served(systemd, *memory, "--spill-directory", str(tmp_path / "spilled"))
    with systemd.connect(staging_bytes=STAGING_BYTES) as session:
        talk = Talk(session, byte_model)
        talk.turn()
        there = served.eventually(
            lambda s: s("djinn_sequence_groups", place="disk") == 1, "its group is on disk"
        )
        spilled = there("djinn_sequence_disk_bytes")
        assert there("djinn_sequence_spilled_bytes_total") == spilled > 0
        assert there("djinn_sequence_spills_total") == 1
        assert there("djinn_sequence_restores_total") == 0
        talk.turn()
        back = served.eventually(
            lambda s: s("djinn_sequence_restores_total") == 1, "its group is back"
        )
        assert back("djinn_sequence_restored_bytes_total") == spilled
    served.eventually(lambda s: s("djinn_sequence_groups") == 0, "it is gone with its session")


def test_no_count_goes_back_when_workers_die(served: Served, byte_model: Path) -> None:
    with served.systemd.connect() as session:
        generator = djinn.Generator(session, byte_model)
        before = served.scrape()
        tokens = before("djinn_tokens_total")
        for deaths in range(1, 4):
            generator.generate([PROMPT], max_new_tokens=10, stop_tokens=[])
            tokens += 10
            told = tokens
            before = served.eventually(
                lambda s, told=told: s("djinn_tokens_total") == told, f"{told} tokens"
            )
            (worker,) = session.status()["workers"]
            os.kill(worker["pid"], signal.SIGKILL)

            def died(s: Scrape, deaths: int = deaths, before: Scrape = before) -> bool:
                now = s.counters()
                fell = {key: value for key, value in before.counters().items() if now[key] < value}
                assert not fell
                ready = s("djinn_workers", state="ready") == 1
                return ready and s("djinn_worker_restarts_total") == deaths

            served.eventually(died, "the next worker is there")
        assert served.scrape()("djinn_events_total", kind="worker-lost") == 3


def test_descriptors_of_resident_models_are_told(served: Served, tmp_path: Path) -> None:
    with served.systemd.connect(observer=True) as session:
        session.load(weights_file(tmp_path, "a", MIB), pin=True)
        wait_until(lambda: len(served.systemd.store) >= 3, "systemd has them")
        served.eventually(
            lambda s: s("djinn_fdstore_descriptors") == len(served.systemd.store), "all are told"
        )
        scrape = served.scrape()
        assert scrape("djinn_fdstore_max_descriptors") == served.systemd.store_max
        assert scrape("djinn_models_not_kept") == 0


# --- asking hurts nobody


def test_scrapes_and_a_generation_go_on_side_by_side(served: Served, byte_model: Path) -> None:
    tokens = 300
    options: dict[str, Any] = {"max_new_tokens": tokens, "stop_tokens": []}
    with served.systemd.connect() as session:
        generator = djinn.Generator(session, byte_model)
        alone = generator.generate([PROMPT], **options)
        watched: list[djinn.Generated] = []
        thread = threading.Thread(
            target=lambda: watched.append(generator.generate([PROMPT], **options)), daemon=True
        )
        thread.start()
        scrapes, slowest = 0, 0.0
        while thread.is_alive():
            begun = time.monotonic()
            served.scrape()
            slowest = max(slowest, time.monotonic() - begun)
            scrapes += 1
        thread.join()
        assert scrapes > 3 and slowest < SCRAPE_S_MAX
        assert watched[0].tokens == alone.tokens
        served.eventually(lambda s: s("djinn_tokens_total") == 2 * tokens, "all tokens are told")


def answer_to(served: Served, request: bytes) -> bytes:
    with served.connect_raw() as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_requests_have_at_most_4_kib(served: Served) -> None:
    begin, end = b"GET /healthz HTTP/1.1\r\nX: ", b"\r\n\r\n"
    largest = begin + b"x" * (REQUEST_BYTES_MAX - len(begin + end)) + end
    assert answer_to(served, largest).startswith(b"HTTP/1.1 200 ")
    assert answer_to(served, largest.replace(b"x", b"xx", 1)).startswith(b"HTTP/1.1 431 ")
    assert answer_to(served, b"\xff" * 100_000).startswith(b"HTTP/1.1 431 ")
    assert answer_to(served, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert answer_to(served, b"DELETE /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert ask(served.address, "/")[0] == 404


def test_silent_clients_are_cut_and_keep_nobody_waiting(served: Served) -> None:
    silent = [served.connect_raw() for _ in range(4 * CONNECTIONS)]
    begun = time.monotonic()
    assert served.scrape()("djinn_sessions") == 0
    assert time.monotonic() - begun < SCRAPE_S_MAX
    with served.systemd.connect(observer=True) as session:
        assert session.status()["sessions"] == 1
    for client in silent:
        client.settimeout(DEADLINE_S)
        assert client.recv(1) == b""
        client.close()
    scrape = served.scrape()
    cut = scrape("djinn_metrics_requests_total", result="cut")
    timeouts = scrape("djinn_metrics_requests_total", result="timeout")
    assert cut >= 3 * CONNECTIONS and cut + timeouts == 4 * CONNECTIONS
    # Who does not read the answer is no trouble either.
    deaf = [served.connect_raw() for _ in range(CONNECTIONS)]
    for client in deaf:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert ask(served.address, "/healthz") == (200, "ok\n")
    for client in deaf:
        client.close()


# --- health


def test_health_and_readiness_say_what_is(systemd: Systemd) -> None:
    served = Served(systemd, "--worker", "/bin/false")
    assert ask(served.address, "/healthz") == (200, "ok\n")
    assert ask(served.address, "/readyz")[0] == 503
    failing = "No worker can be started"
    wait_until(lambda: ask(served.address, "/readyz")[1].startswith(failing), "no worker starts")
    assert ask(served.address, "/healthz") == (200, "ok\n")  # djinnd itself is well
    scrape = served.eventually(lambda s: s("djinn_ready") == 0, "it is told")
    assert scrape("djinn_device_ready") == 0
    assert scrape("djinn_healthy") == 1


def test_djinnd_is_ready_when_its_first_worker_is(served: Served) -> None:
    wait_until(lambda: ask(served.address, "/readyz") == (200, "ok\n"), "it is ready")
    assert served.eventually(lambda s: s("djinn_ready") == 1, "it is told")("djinn_draining") == 0


def test_a_djinnd_without_the_socket_tells_nothing_and_one_with_another_says_so(
    systemd: Systemd,
) -> None:
    systemd.start("--user")
    systemd.hear("READY=1")
    assert systemd.process is not None
    threads = Path(f"/proc/{systemd.process.pid}/task").glob("*/comm")
    assert "metrics" not in {thread.read_text().strip() for thread in threads}
    systemd.stop()
    systemd.metrics = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.start("--user")
    assert '"metrics"' in systemd.stderr_line("djinnd: systemd")
    assert systemd.process.wait(DEADLINE_S) == 1
