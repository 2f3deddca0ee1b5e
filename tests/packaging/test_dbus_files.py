# SPDX-License-Identifier: Apache-2.0
"""What is installed for D-Bus and polkit agrees with the program, the unit and the manual."""

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "packaging" / "dbus"
NAME = "org.djinn.Manager1"
OWNER = "org.freedesktop.policykit.owner"


def members(tag: str) -> set[str]:
    (interface,) = ElementTree.parse(PLACE / f"{NAME}.xml").getroot()
    assert interface.get("name") == NAME
    return {str(member.get("name")) for member in interface.findall(tag)}


def test_polkits_actions_are_those_of_the_code() -> None:
    code = (ROOT / "daemon/djinnd/dbus/manager.cc").read_text()
    actions = ElementTree.parse(PLACE / "org.djinn.policy").getroot().findall("action")
    assert {one.get("id") for one in actions} == set(re.findall(r'"(org\.djinn\.[a-z]+)"', code))
    for action in actions:
        defaults = action.find("defaults")
        assert defaults is not None
        assert {one.text for one in defaults} == {"auth_admin_keep"}
        # Else polkit would not answer a djinnd that is no root.
        owners = [one.text for one in action.findall("annotate") if one.get("key") == OWNER]
        assert owners == ["unix-user:djinn"]


def test_the_bus_starts_the_unit_that_has_the_name() -> None:
    activation = (PLACE / f"{NAME}.service").read_text()
    assert f"\nName={NAME}\n" in activation
    assert "\nSystemdService=djinnd.service\n" in activation
    assert f"\nBusName={NAME}\n" in (ROOT / "packaging/systemd/djinnd.service").read_text()


def test_the_policy_is_for_the_users_and_groups_that_there_are() -> None:
    policy = ElementTree.parse(PLACE / f"{NAME}.conf").getroot()
    sysusers = (ROOT / "packaging/systemd/djinn.sysusers").read_text()
    users = set(re.findall(r"^u (\S+)", sysusers, re.MULTILINE))
    groups = users | set(re.findall(r"^g (\S+)", sysusers, re.MULTILINE))
    assert {one.get("user") for one in policy} - {None} == users | {"root"}
    assert {one.get("group") for one in policy} - {None} == groups


def test_the_manual_has_each_member() -> None:
    page = (ROOT / f"man/{NAME}.5.scd").read_text()
    sections = dict(re.findall(r"^# (.*?)\n(.*?)(?=\n# |\Z)", page, re.MULTILINE | re.DOTALL))
    for heading, tag in (("METHODS", "method"), ("PROPERTIES", "property"), ("SIGNALS", "signal")):
        terms = "\n".join(re.findall(r"^(\*.*)\n\t", sections[heading], re.MULTILINE))
        assert set(re.findall(r"\*(\w+)\*", terms)) == members(tag), heading
    code = (ROOT / "daemon/djinnd/dbus/manager.cc").read_text()
    actions = set(re.findall(r"^\*(org\.djinn\.[a-z]+)\*$", page, re.MULTILINE))
    assert actions == set(re.findall(r'"(org\.djinn\.[a-z]+)"', code))
