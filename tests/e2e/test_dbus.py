# SPDX-License-Identifier: Apache-2.0
"""djinnd as org.djinn.Manager1, on a message bus of the test's own."""

import getpass
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jeepney import new_method_call
from other_user import User
from private_bus import (
    MANAGER,
    NAME,
    PROGRAM,
    BusError,
    Ear,
    Polkit,
    PrivateBus,
    ask,
    call,
    call_of,
    flooding,
    interface_in,
    introspection,
    listed,
    property_of,
)
from private_daemon import BIN, ROOT, Daemon, wait_until
from safetensors.numpy import save_file
from systemd_double import Systemd

pytestmark = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason="dbus-daemon is not installed"
)

NOBODY = pwd.getpwnam("nobody").pw_uid
# Groups of every Debian stand for djinn and djinn-admin.
MEMBERS, ADMINS = "users", "games"
INSIDER = User("nobody", NOBODY, "nogroup", (MEMBERS,))
ADMIN = User("nobody", NOBODY, "nogroup", (ADMINS, MEMBERS))
OUTSIDER = User("nobody", NOBODY, "nogroup")
NAMES = {
    "user djinn": getpass.getuser(),
    "group djinn": MEMBERS,
    "group djinn-admin": ADMINS,
}
DOUBLE = """srg 1 "double"
weight %w "w" : float32[3, 1000]
%y = aten::add.Tensor(%w, %w)
output %y
"""
WEIGHTS = np.arange(3000, dtype=np.float32).reshape(3, 1000)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NEEDS ROOT, to become other users")


@pytest.fixture
def bus(place: Path) -> Iterator[PrivateBus]:
    bus = PrivateBus(place, NAMES)
    bus.start()
    yield bus
    bus.stop()


@contextmanager
def starting(directory: Path, bus: PrivateBus, *options: str) -> Iterator[Systemd]:
    systemd = Systemd(directory, bus=bus.address)
    (directory / "djinnd.sock").chmod(0o666)
    (directory / "notify").unlink()  # nobody here listens, and djinnd shall not wait for that
    try:
        systemd.start("--threads", "1", *options)
        yield systemd
        assert systemd.stop() == 0
    finally:
        systemd.close()


@contextmanager
def serving(bus: PrivateBus, *options: str) -> Iterator[Systemd]:
    """A djinnd that has its name on the bus."""
    with starting(bus.socket.parent, bus, *options) as systemd:
        systemd.stderr_line(f"{NAME} is served")
        yield systemd


@pytest.fixture
def of_user(bus: PrivateBus) -> Iterator[Systemd]:
    with serving(bus, "--user") as systemd:
        yield systemd


@pytest.fixture
def service(bus: PrivateBus) -> Iterator[Systemd]:
    root = str(bus.socket.parent)  # without configuration
    with serving(bus, "--root", root, "--admin-group", ADMINS) as systemd:
        yield systemd


@pytest.fixture
def model_file(place: Path) -> Path:
    path = place / "tiny.safetensors"
    save_file({"w": WEIGHTS}, path)
    return path


def refused(connection: Any, method: str, *arguments: str | bool, interactive: bool = False) -> str:
    with pytest.raises(BusError) as raised:
        call(connection, method, *arguments, interactive=interactive)
    return raised.value.name.removeprefix("org.djinn.Error.")


def shown_by_ctl(systemd: Systemd, *words: str) -> list[dict[str, Any]]:
    said = subprocess.run(
        [str(BIN / "djinnctl"), "--json", *words],
        env=os.environ | {"DJINN_HOST": systemd.host},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    return json.loads(said.stdout)["items"]


def comparable(item: dict[str, Any]) -> dict[str, Any]:
    """Times are numbers on D-Bus, and text in JSON; what is null in JSON is left out on D-Bus, and
    ListUses tells who uses what."""
    other = ("started", "loaded", "expires", "held_models", "holders", "pinned_by", "names")
    return {key: value for key, value in item.items() if key not in other and value is not None}


# --- what it says and does


def test_the_installed_description_is_that_of_the_program(
    bus: PrivateBus, of_user: Systemd
) -> None:
    installed = ROOT / f"packaging/dbus/{NAME}.xml"
    with bus.connect() as connection:
        assert interface_in(introspection(connection)) == interface_in(installed.read_text())


def test_sessions_are_told_listed_and_ended(bus: PrivateBus, of_user: Systemd) -> None:
    with bus.connect() as connection, ExitStack() as stack:
        ear = Ear(connection)
        session = stack.enter_context(of_user.connect("a client"))
        _, (begun,) = ear.next("SessionNew")
        (item,) = listed(connection, "ListSessions")
        assert (item["id"], item["name"]) == (begun, "a client")
        assert property_of(connection, "SessionCount") == 1
        (shown,) = (one for one in shown_by_ctl(of_user, "sessions") if one["name"] == "a client")
        assert comparable(item) == comparable(shown)
        assert property_of(connection, "Version") == session.status()["version"]
        assert refused(connection, "Cancel", item["id"]) == "NotFound"  # it runs nothing
        call(connection, "Terminate", item["id"])
        _, (removed, released) = ear.next("SessionRemoved")
        assert (removed, released > 0) == (item["id"], True)
        wait_until(lambda: listed(connection, "ListSessions") == [], "djinnctl's is gone too")


def test_models_are_told_listed_and_pinned(
    bus: PrivateBus, of_user: Systemd, model_file: Path
) -> None:
    with bus.connect() as connection, of_user.connect() as session:
        ear = Ear(connection)
        model = session.load(model_file)
        wait_until(lambda: "sha256" in listed(connection, "ListModels")[0], "it is hashed")
        (item,) = listed(connection, "ListModels")
        (shown,) = shown_by_ctl(of_user, "ps")
        assert comparable(item) == comparable(shown)
        _, loaded = ear.next("ModelLoaded")
        assert loaded == (item["id"], item["bytes"])
        call(connection, "Pin", item["id"])
        assert session.models()[0]["pinned"]
        call(connection, "Unpin", item["id"])
        assert not session.models()[0]["pinned"]
        model.close()
        session.unload(model)
        assert ear.next("ModelRemoved")[1] == loaded


def test_a_model_tells_its_numerics_where_any_were_said(
    bus: PrivateBus, of_user: Systemd, byte_model: Path
) -> None:
    with bus.connect() as connection:
        for words, said in (((), None), (("--numerics", "fast"), "fast")):
            shown_by_ctl(of_user, "load", str(byte_model), *words)
            (item,) = listed(connection, "ListModels")
            assert item.get("numerics") == said


def test_who_uses_a_model_is_listed(bus: PrivateBus, of_user: Systemd, model_file: Path) -> None:
    with bus.connect() as connection, ExitStack() as stack:
        sessions = [stack.enter_context(of_user.connect(name)) for name in ("one", "other", "none")]
        models = [session.load(model_file) for session in sessions[:2]]
        assert models[0].id == models[1].id
        call(connection, "Pin", models[0].id)
        uses = listed(connection, "ListUses", models[0].id)
        (shown,) = shown_by_ctl(of_user, "show", models[0].id)
        assert [use for use in uses if "session" in use] == shown["holders"]
        assert sorted(use["name"] for use in shown["holders"]) == ["one", "other"]
        pins = [use for use in uses if "session" not in use]
        assert pins == [{"owner": owner, "pinned": True} for owner in shown["pinned_by"]]
        assert len(pins) == 1
        models[0].close()
        assert [one.get("name") for one in listed(connection, "ListUses", models[0].id)] == [
            "other",
            None,
        ]
        assert refused(connection, "ListUses", "000000000001") == "NotFound"
        assert refused(connection, "ListUses", "bytes") == "InvalidArgument"


def test_a_model_is_evicted_and_comes_back(
    bus: PrivateBus, of_user: Systemd, model_file: Path
) -> None:
    with bus.connect() as connection, of_user.connect() as session:
        program = session.define(DOUBLE, session.load(model_file, pin=True))
        wait_until(lambda: "sha256" in listed(connection, "ListModels")[0], "it is hashed")
        (item,) = listed(connection, "ListModels")
        ear = Ear(connection)
        assert refused(connection, "Evict", item["id"], "disk", False) == "Busy"  # it is pinned
        assert refused(connection, "Evict", item["id"], "host", True) == "Unsupported"
        assert refused(connection, "Evict", item["id"], "moon", True) == "InvalidArgument"
        call(connection, "Evict", item["id"], "disk", True)
        assert [one["state"] for one in listed(connection, "ListModels")] == ["disk"]
        assert ear.next("ModelEvicted")[1] == (item["id"], item["bytes"])
        (found,) = program().values()
        assert np.array_equal(found, 2 * WEIGHTS)
        assert ear.next("ModelLoaded")[1] == (item["id"], item["bytes"])


def test_draining_is_told_and_ends_when_resumed(bus: PrivateBus, of_user: Systemd) -> None:
    with bus.connect() as connection:
        ear = Ear(connection)
        for method, draining in (("Drain", True), ("Drain", True), ("Resume", False)):
            call(connection, method)
            assert property_of(connection, "Draining") is draining
        changes = [ear.next("PropertiesChanged")[1][1] for _ in range(2)]
        assert changes == [{"Draining": ("b", True)}, {"Draining": ("b", False)}]
        with of_user.connect() as session:
            assert session.status()["sessions"] == 1


def test_lost_workers_and_devices_are_told(bus: PrivateBus) -> None:
    worker = bus.socket.parent / "worker"
    worker.symlink_to(BIN / "djinn-worker")
    with serving(bus, "--user", "--worker", str(worker)) as systemd, bus.connect() as connection:
        ear = Ear(connection)
        with systemd.connect() as session:
            worker.unlink()
            worker.symlink_to("/bin/false")  # so the spare one is the last
            (serves,) = session.status()["workers"]
            os.kill(serves["pid"], signal.SIGKILL)
            assert ear.next("WorkerLost")[1] == ("cpu:0",)
            assert ear.next("DeviceLost")[1] == ("cpu:0",)
            worker.unlink()
            worker.symlink_to(BIN / "djinn-worker")
            assert ear.next("DeviceBack")[1] == ("cpu:0",)


def test_changed_counts_are_told(bus: PrivateBus, of_user: Systemd) -> None:
    with bus.connect() as connection:
        ear = Ear(connection)
        with of_user.connect():
            _, (interface, changed, _) = ear.next("PropertiesChanged")
            assert interface == NAME
            assert changed["SessionCount"] == ("u", 1)


def test_arguments_that_are_no_ids_are_refused(bus: PrivateBus, of_user: Systemd) -> None:
    with bus.connect() as connection:
        for wrong in ("", "1", "0" * 12, "-00000000001", "00000000000g", "0000000000001"):
            assert refused(connection, "Terminate", wrong) == "InvalidArgument", wrong
        assert refused(connection, "Pin", "000000000001") == "NotFound"
        assert refused(connection, "Reload") == "Unsupported"


@pytest.mark.skipif(shutil.which("busctl") is None, reason="busctl is not installed")
def test_the_manuals_examples_work(bus: PrivateBus, of_user: Systemd) -> None:
    page = (ROOT / f"man/{NAME}.5.scd").read_text()
    examples = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    ending = [example for example in examples if " monitor " not in example]
    assert ending
    for example in ending:
        environment = os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": bus.address}
        command = ["bash", "-ec", example]
        said = subprocess.run(command, env=environment, capture_output=True, timeout=60)
        assert said.returncode == 0, (example, said.stderr)


# --- buses that are not there


def test_without_a_bus_all_else_works_and_one_that_comes_is_found(
    bus: PrivateBus, model_file: Path
) -> None:
    bus.stop()
    with starting(bus.socket.parent, bus, "--user") as systemd:
        assert "No such file" in systemd.stderr_line(f"{NAME} is not on D-Bus")
        with systemd.connect() as session:
            (found,) = session.define(DOUBLE, session.load(model_file))().values()
            assert np.array_equal(found, 2 * WEIGHTS)
        bus.start()
        wait_until(bus.has_name, "djinnd has found the bus")


def test_a_bus_that_dies_loses_nothing(bus: PrivateBus, of_user: Systemd, model_file: Path) -> None:
    with of_user.connect() as session:
        program = session.define(DOUBLE, session.load(model_file, pin=True))
        for _ in range(2):
            bus.stop()
            of_user.stderr_line(f"{NAME} is not on D-Bus")
            (found,) = program().values()
            assert np.array_equal(found, 2 * WEIGHTS)
            bus.start()
            wait_until(bus.has_name, "djinnd has found the bus again")
        with bus.connect() as connection:
            assert [item["pinned"] for item in listed(connection, "ListModels")] == [True]


def test_a_name_that_is_taken_waits_until_it_is_free(bus: PrivateBus) -> None:
    with ExitStack() as stack:
        elsewhere = stack.enter_context(tempfile.TemporaryDirectory(prefix="djinn-bus."))
        with serving(bus, "--user"):
            second = stack.enter_context(starting(Path(elsewhere), bus, "--user"))
            second.stderr_line("another process has the name")
            with second.connect(observer=True) as session, bus.connect() as connection:
                assert session.status()["sessions"] == 1
                assert listed(connection, "ListSessions") == []  # the first one's
        second.stderr_line(f"{NAME} is served")


def test_a_daemon_in_a_place_of_its_own_leaves_the_bus_alone(
    bus: PrivateBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("SYSTEM", "SESSION"):
        monkeypatch.setenv(f"DBUS_{kind}_BUS_ADDRESS", bus.address)
    daemon = Daemon(bus.socket.parent, ())
    try:
        assert daemon.status()["sessions"] == 1
        assert not bus.has_name()
        assert NAME not in daemon.log.read_text()
    finally:
        daemon.stop()


def test_a_flood_of_calls_stops_nobody(bus: PrivateBus, of_user: Systemd) -> None:
    with of_user.connect() as session, flooding(bus) as many, bus.connect() as connection:
        assert many.wait(60)
        for _ in range(50):
            assert session.status()["sessions"] == 1
        assert len(listed(connection, "ListSessions")) == 1


def resident_bytes(systemd: Systemd) -> int:
    assert systemd.process is not None
    status = Path(f"/proc/{systemd.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def test_calls_of_many_bytes_are_refused_and_never_held(bus: PrivateBus, of_user: Systemd) -> None:
    with bus.connect() as connection:
        assert listed(connection, "ListSessions") == []
        before = resident_bytes(of_user)
        for _ in range(3):
            assert refused(connection, "Cancel", "x" * (8 << 20)) == "InvalidArgument"
        assert resident_bytes(of_user) < before + (4 << 20)
        assert listed(connection, "ListSessions") == []


# --- who may do what


@needs_root
def test_users_see_and_steer_their_own_and_administrators_all(
    bus: PrivateBus, service: Systemd, model_file: Path
) -> None:
    with ExitStack() as stack:
        roots = stack.enter_context(service.connect("root's"))
        model = roots.load(model_file)
        with INSIDER.acting():
            stack.enter_context(service.connect("insider's"))
            insider = stack.enter_context(bus.connect())
        with ADMIN.acting():
            admin = stack.enter_context(bus.connect())
        (own,) = listed(insider, "ListSessions")
        assert own["owner"] == INSIDER.name
        ids = {item["name"]: item["id"] for item in listed(admin, "ListSessions")}
        assert ids.keys() == {"root's", "insider's"}
        assert listed(insider, "ListModels") == []
        (pinned,) = listed(admin, "ListModels")
        assert refused(insider, "ListUses", pinned["id"]) == "NotFound"
        assert [use["name"] for use in listed(admin, "ListUses", pinned["id"])] == ["root's"]
        assert refused(insider, "Terminate", ids["root's"]) == "NotFound"
        assert refused(insider, "Pin", pinned["id"]) == "NotFound"
        for method in ("Reload", "Drain", "Resume"):
            assert refused(insider, method) == "PermissionDenied"
        assert refused(insider, "Evict", pinned["id"], "disk", True) == "NotFound"
        assert len(roots.sessions()) == 2
        model.close()
        call(admin, "Pin", pinned["id"])
        call(admin, "Reload")
        call(insider, "Terminate", own["id"])
        call(admin, "Terminate", ids["root's"])
        wait_until(lambda: listed(admin, "ListSessions") == [], "both sessions are ended")


@needs_root
def test_signals_reach_owners_and_administrators_alone(
    bus: PrivateBus, service: Systemd, model_file: Path
) -> None:
    with ExitStack() as stack:
        with INSIDER.acting():
            insider = Ear(stack.enter_context(bus.connect()))
        with ADMIN.acting():
            admin = Ear(stack.enter_context(bus.connect()))
        root = Ear(stack.enter_context(bus.connect()))
        roots = stack.enter_context(service.connect("root's"))
        model = roots.load(model_file)
        model.close()
        roots.unload(model)
        (worker,) = roots.status()["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        for ear in (admin, root):
            for member in ("SessionNew", "ModelLoaded", "ModelRemoved", "WorkerLost"):
                ear.next(member)
        roots.close()
        admin.next("SessionRemoved")
        with INSIDER.acting(), service.connect("insider's"):
            (own,) = listed(insider.connection, "ListSessions")
        theirs = ("SessionNew", "SessionRemoved", "ModelLoaded", "ModelRemoved", "WorkerLost")
        assert insider.next(*theirs) == ("SessionNew", (own["id"],))
        assert insider.next(*theirs)[1][0] == own["id"]
        assert admin.next("SessionNew") == ("SessionNew", (own["id"],))


@needs_root
def test_a_user_sees_their_own_worker_and_sums(service: Systemd) -> None:
    with ExitStack() as stack:
        roots = stack.enter_context(service.connect("root's"))
        with INSIDER.acting():
            insiders = stack.enter_context(service.connect("insider's"))
        with ADMIN.acting():
            admins = stack.enter_context(service.connect("admin's", observer=True))
        assert {one["owner"] for one in roots.status()["workers"]} == {"root", INSIDER.name}
        assert [one["owner"] for one in insiders.status()["workers"]] == [INSIDER.name]
        assert len(admins.status()["workers"]) == 2
        sums = ("memory_total_bytes", "memory_granted_bytes", "sessions", "models")
        assert [insiders.status()[key] for key in sums] == [roots.status()[key] for key in sums]


def test_who_left_is_subscribed_no_more_and_one_user_has_few_subscribers(
    bus: PrivateBus, of_user: Systemd
) -> None:
    for _ in range(40):
        with bus.connect() as connection:
            call(connection, "Subscribe")
            call(connection, "Subscribe")  # once is enough
    with ExitStack() as stack:

        def can_subscribe() -> bool:  # the bus may tell a little later of those that left
            with bus.connect() as connection:
                try:
                    call(connection, "Subscribe")
                except BusError:
                    return False
            return True

        for _ in range(15):
            wait_until(can_subscribe, "others have left")
            call(stack.enter_context(bus.connect()), "Subscribe")
        wait_until(can_subscribe, "others have left")
        last = stack.enter_context(bus.connect())
        call(last, "Subscribe")
        assert refused(stack.enter_context(bus.connect()), "Subscribe") == "LimitExceeded"
        call(last, "Unsubscribe")
        call(last, "Unsubscribe")
        call(stack.enter_context(bus.connect()), "Subscribe")


def test_without_a_subscription_no_signal_comes(bus: PrivateBus, of_user: Systemd) -> None:
    with ExitStack() as stack:
        never, no_more, still = (stack.enter_context(bus.connect()) for _ in range(3))
        silent = [Ear(never, subscribes=False), Ear(no_more)]
        call(no_more, "Unsubscribe")
        heard = Ear(still)
        with of_user.connect():
            heard.next("SessionNew")
            for ear in silent:
                assert ear.next("SessionNew", "PropertiesChanged")[0] == "PropertiesChanged"


@needs_root
def test_who_may_not_connect_to_the_socket_may_not_call(bus: PrivateBus, service: Systemd) -> None:
    with ExitStack() as stack:
        with OUTSIDER.acting():
            outsider = stack.enter_context(bus.connect())
        unheard = Ear(outsider, subscribes=False)
        denied = "org.freedesktop.DBus.Error.AccessDenied"
        assert refused(outsider, "ListSessions") == denied
        with pytest.raises(BusError, match=denied):
            property_of(outsider, "Version")
        heard = Ear(stack.enter_context(bus.connect()))
        with service.connect():
            heard.next("SessionNew")
            heard.next("PropertiesChanged")
        with pytest.raises(TimeoutError):
            unheard.next("SessionNew", "PropertiesChanged", deadline_s=0)


def test_no_call_brings_a_descriptor(bus: PrivateBus, of_user: Systemd, model_file: Path) -> None:
    with bus.connect(passes_descriptors=True) as connection, model_file.open() as file:
        with pytest.raises(BusError, match="AccessDenied"):
            ask(connection, new_method_call(MANAGER, "Evict", "h", (file,)))
        assert listed(connection, "ListModels") == [], "that goes through"


@needs_root
def test_polkit_makes_an_administrator_for_one_call(bus: PrivateBus, service: Systemd) -> None:
    polkit = Polkit(bus)
    with ExitStack() as stack:
        stack.enter_context(service.connect("root's"))
        with INSIDER.acting():
            insider = stack.enter_context(bus.connect())
        assert listed(insider, "ListSessions") == []
        polkit.allows = {"org.djinn.inspect"}
        (session,) = listed(insider, "ListSessions")
        assert refused(insider, "Terminate", session["id"]) == "NotFound"
        assert refused(insider, "Reload", interactive=True) == "PermissionDenied"
        polkit.allows = {"org.djinn.steer", "org.djinn.manage"}
        call(insider, "Terminate", session["id"], interactive=True)
        call(insider, "Reload")
        who = insider.unique_name
        assert polkit.asked == [
            (who, "org.djinn.inspect", False),
            (who, "org.djinn.inspect", False),
            (who, "org.djinn.steer", False),
            (who, "org.djinn.manage", True),
            (who, "org.djinn.steer", True),
            (who, "org.djinn.manage", False),
        ]
        with bus.connect() as root:
            wait_until(lambda: listed(root, "ListSessions") == [], "the session is ended")
        assert len(polkit.asked) == 6  # root is not asked about


@needs_root
def test_nobody_is_asked_for_a_password_in_the_name_of_who_has_left(
    bus: PrivateBus, service: Systemd
) -> None:
    polkit = Polkit(bus)
    polkit.ponders = True
    with ExitStack() as stack:
        with INSIDER.acting():
            leaver, stayer = bus.connect(), stack.enter_context(bus.connect())
        for connection in (leaver, stayer):
            connection.send(call_of("Reload", interactive=True))
        wait_until(lambda: len(polkit.open) == 2, "polkit asks the users")
        leaver.close()
        wait_until(lambda: len(polkit.withdrawn) == 1, "one question is withdrawn")
        (question,) = polkit.open.values()
        assert question.body[0][1]["name"][1] == stayer.unique_name
        polkit.ponders = False
        assert refused(stayer, "Pin", "0" * 11 + "1") == "NotFound"  # djinnd goes on


@needs_root
def test_a_reload_that_fails_is_refused_with_its_reason(bus: PrivateBus, service: Systemd) -> None:
    config = bus.socket.parent / "etc/djinn/djinnd.conf"
    config.parent.mkdir(parents=True)
    config.write_text("lane.threads = 0\n")
    with bus.connect() as root:
        assert refused(root, "Reload") == "InvalidArgument"
        config.write_text('memory.session_quota = "1GiB"\n')
        call(root, "Reload")
    service.stderr_line("the configuration is reloaded")


@needs_root
def test_the_daemon_of_one_user_serves_nobody_else(bus: PrivateBus, of_user: Systemd) -> None:
    with INSIDER.acting(), bus.connect() as connection:
        assert refused(connection, "ListSessions") == "PermissionDenied"


def test_the_name_is_not_for_everybody(bus: PrivateBus) -> None:
    text = bus.config.read_text() + (bus.socket.parent / "policy.conf").read_text()
    assert text.count(f'own="{NAME}"') == 1
    assert MANAGER.bus_name == NAME
