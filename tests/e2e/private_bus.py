# SPDX-License-Identifier: Apache-2.0
"""A message bus for tests: dbus-daemon on a socket of the test's own, with the policy that djinnd
is installed with."""

import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jeepney import (
    DBusAddress,
    MatchRule,
    Message,
    MessageFlag,
    MessageType,
    Properties,
    message_bus,
    new_error,
    new_method_call,
    new_method_return,
)
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from private_daemon import DEADLINE_S, ROOT, wait_until

PROGRAM = "dbus-daemon"
NAME = "org.djinn.Manager1"
MANAGER = DBusAddress("/org/djinn/Manager1", bus_name=NAME, interface=NAME)
POLKIT = "org.freedesktop.PolicyKit1"
POLICY = ROOT / "packaging/dbus/org.djinn.Manager1.conf"
# As a system's: everything that is not allowed is denied, and what is allowed is a file's to say.
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow send_destination="{polkit}"/>
  </policy>
  <policy user="{user}"><allow own="{polkit}"/></policy>
  <include>{policy}</include>
</busconfig>
"""


class BusError(Exception):
    """The error with which a call was answered: its name, and what it says."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class PrivateBus:
    """names: the users and groups that stand for those of the installed policy, which are
    `user djinn`, `group djinn` and `group djinn-admin`."""

    def __init__(self, directory: Path, names: dict[str, str]) -> None:
        self.socket = directory / "bus"
        self.address = f"unix:path={self.socket}"
        policy = POLICY.read_text()
        for name, other in names.items():
            kind, called = name.split()
            policy = policy.replace(f'policy {kind}="{called}"', f'policy {kind}="{other}"')
        (directory / "policy.conf").write_text(policy)
        self.config = directory / "bus.conf"
        self.config.write_text(
            CONFIG.format(
                socket=self.socket,
                policy=directory / "policy.conf",
                polkit=POLKIT,
                user=names["user djinn"],
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [PROGRAM, f"--config-file={self.config}", "--nofork"]
        with (self.socket.parent / "bus.log").open("w") as log:
            self.process = subprocess.Popen(command, stderr=log)
        wait_until(self._answers, "the bus answers")

    def _answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError((self.socket.parent / "bus.log").read_text())
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.socket.unlink()

    def connect(self, *, passes_descriptors: bool = False) -> DBusConnection:
        return open_dbus_connection(self.address, enable_fds=passes_descriptors)

    def has_name(self, name: str = NAME) -> bool:
        with self.connect() as connection:
            (owned,) = connection.send_and_get_reply(message_bus.NameHasOwner(name)).body
            return owned


def ask(connection: DBusConnection, message: Message) -> Any:
    """What the answer holds; BusError if it is one."""
    reply = connection.send_and_get_reply(message, timeout=DEADLINE_S)
    if reply.header.message_type == MessageType.error:
        name = next(value for key, value in reply.header.fields.items() if key.name == "error_name")
        raise BusError(name, str(reply.body[0]) if reply.body else "")
    return reply.body[0] if reply.body else None


def call_of(method: str, *arguments: str | bool, interactive: bool = False) -> Message:
    """A call of djinnd."""
    signature = "".join("b" if isinstance(one, bool) else "s" for one in arguments)
    message = new_method_call(MANAGER, method, signature or None, arguments)
    if interactive:
        message.header.flags |= MessageFlag.allow_interactive_authorization
    return message


def call(
    connection: DBusConnection, method: str, *arguments: str | bool, interactive: bool = False
) -> Any:
    return ask(connection, call_of(method, *arguments, interactive=interactive))


def listed(connection: DBusConnection, method: str, *arguments: str) -> list[dict[str, Any]]:
    """Dictionaries without the types of their entries."""
    items = call(connection, method, *arguments)
    return [{key: value[1] for key, value in item.items()} for item in items]


def property_of(connection: DBusConnection, name: str) -> Any:
    return ask(connection, Properties(MANAGER).get(name))[1]


def introspection(connection: DBusConnection) -> str:
    address = MANAGER.with_interface("org.freedesktop.DBus.Introspectable")
    return ask(connection, new_method_call(address, "Introspect"))


class Ear:
    """Hears the signals of djinnd from the moment when it is made; without subscribing, changes of
    properties only."""

    def __init__(self, connection: DBusConnection, *, subscribes: bool = True) -> None:
        self.connection = connection
        self.heard: deque[Message] = deque()
        rule = MatchRule(type="signal", path=MANAGER.object_path)
        ask(connection, message_bus.AddMatch(rule))
        self._filter = connection.filter(rule, queue=self.heard)
        self._filter.__enter__()
        if subscribes:
            call(connection, "Subscribe")

    def next(self, *members: str, deadline_s: float = DEADLINE_S) -> tuple[str, tuple[Any, ...]]:
        """The next signal that is one of these; those before it are dropped."""
        while True:
            message = self.connection.recv_until_filtered(self.heard, timeout=deadline_s)
            fields = {key.name: value for key, value in message.header.fields.items()}
            if fields["member"] in members:
                return fields["member"], message.body


class Polkit:
    """Stands for polkitd: hears what it is asked, and answers as it is told."""

    def __init__(self, bus: PrivateBus) -> None:
        self.allows: set[str] = set()  # actions
        self.asked: list[tuple[str, str, bool]] = []  # who, for what, whether a user may be asked
        self.ponders = False  # asks a user who does not answer
        self.open: dict[str, Message] = {}  # questions without an answer, by their cancellation id
        self.withdrawn: list[str] = []
        self.connection = bus.connect()
        ask(self.connection, message_bus.RequestName(POLKIT))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                message = self.connection.receive()
            except (OSError, ValueError):
                return
            if message.header.message_type != MessageType.method_call:
                continue
            answer = self._answer(message)
            if answer is not None:
                self.connection.send(answer)

    def _answer(self, message: Message) -> Message | None:
        fields = {key.name: value for key, value in message.header.fields.items()}
        if fields["member"] == "CancelCheckAuthorization":
            (cancellation,) = message.body
            self.withdrawn.append(cancellation)
            question = self.open.pop(cancellation)
            return new_error(question, f"{POLKIT}.Error.Cancelled", "s", ("as it wished",))
        (kind, subject), action, details, flags, cancellation = message.body
        if kind != "system-bus-name" or details or not cancellation or cancellation in self.open:
            return new_error(message, f"{POLKIT}.Error.Failed", "s", ("it asks strangely",))
        self.asked.append((subject["name"][1], action, flags == 1))
        if self.ponders:
            self.open[cancellation] = message
            return None
        allowed = action in self.allows
        return new_method_return(message, "(bba{ss})", ((allowed, not allowed, {}),))


@contextmanager
def flooding(bus: PrivateBus) -> Iterator[threading.Event]:
    """A client that calls as fast as it can, and looks at no answer. The event says that it has
    called some thousand times."""
    many, done = threading.Event(), threading.Event()

    def work(connection: DBusConnection) -> None:
        sent = 0
        while not done.is_set():
            message = new_method_call(MANAGER, "ListSessions" if sent % 2 else "Nonsense")
            message.header.flags |= MessageFlag.no_reply_expected
            connection.send(message)
            sent += 1
            if sent == 5000:
                many.set()

    with bus.connect() as connection:
        thread = threading.Thread(target=work, args=(connection,))
        thread.start()
        try:
            yield many
        finally:
            done.set()
            thread.join()


def interface_in(xml: str) -> str:
    """The description of the interface, in one spelling."""
    found = re.search(rf'<interface name="{re.escape(NAME)}">.*?</interface>', xml, re.DOTALL)
    assert found is not None, xml
    without_comments = re.sub(r"<!--.*?-->", "", found[0], flags=re.DOTALL)
    return "\n".join(line.strip() for line in without_comments.splitlines() if line.strip())
