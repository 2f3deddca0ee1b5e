# SPDX-License-Identifier: Apache-2.0
"""The unit files, as systemd reads them; tests that need a booted system are elsewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "packaging" / "systemd"
EXPOSURE_MAX = 1.0
LOAD_EXPOSURE_MAX = 3.0  # it is root, to read whoever's models

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analyze(*arguments: str) -> str:
    command = ["systemd-analyze", "--no-pager", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return found.stdout + found.stderr


def test_the_services_exposure_is_low() -> None:
    said = analyze("security", "--offline=true", str(UNITS / "djinnd.service"))
    level = re.search(r"Overall exposure level for djinnd.service: ([0-9.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= EXPOSURE_MAX, said


def test_units_have_no_unknown_or_misplaced_settings() -> None:
    said = analyze("verify", "--man=no", *(str(one) for one in UNITS.glob("djinnd.s*")))
    complaints = [line for line in said.splitlines() if str(UNITS) in line or "djinnd." in line]
    absent = "is not executable: No such file or directory"  # it is not installed here
    assert [line for line in complaints if absent not in line] == []


def test_the_service_may_open_no_device_that_djinnd_does_not_use() -> None:
    unit = (UNITS / "djinnd.service").read_text()
    assert re.findall(r"^Device.*$", unit, re.MULTILINE) == ["DevicePolicy=closed"]


def test_the_service_with_gpus_may_open_the_drivers_nodes_and_its_exposure_is_low(
    tmp_path: Path,
) -> None:
    unit = tmp_path / "djinnd.service"
    drop_in = (UNITS / "cuda.conf").read_text()
    devices = re.findall(r"^Device.*$", drop_in, re.MULTILINE)
    assert devices and all(one.startswith("DeviceAllow=char-nvidia") for one in devices)
    unit.write_text((UNITS / "djinnd.service").read_text())
    (tmp_path / "djinnd.service.d").mkdir()
    shutil.copy(UNITS / "cuda.conf", tmp_path / "djinnd.service.d")
    said = analyze("security", "--offline=true", str(unit))
    level = re.search(r"Overall exposure level for djinnd.service: ([0-9.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= EXPOSURE_MAX, said
    complaints = analyze("verify", "--man=no", str(unit)).splitlines()
    assert [line for line in complaints if "cuda.conf" in line] == []


def test_a_reload_asks_first_whether_the_configuration_can_be() -> None:
    unit = (UNITS / "djinnd.service").read_text()
    first, second = re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE)
    assert first == "/usr/bin/djinnd --check-config"
    assert "kill -HUP" in second


def test_a_model_that_is_loaded_at_the_start_has_a_unit_that_may_do_little() -> None:
    name = "djinn-load@.service"
    said = analyze("security", "--offline=true", str(UNITS / name))
    level = re.search(r"Overall exposure level for djinn-load@\w*.service: ([0-9.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= LOAD_EXPOSURE_MAX, said
    said = analyze("verify", "--man=no", str(UNITS / name))
    absent = "is not executable: No such file or directory"  # it is not installed here
    complaints = [line for line in said.splitlines() if name in line and absent not in line]
    assert complaints == []


def test_the_store_holds_what_djinnd_believes_it_does() -> None:
    """systemd tells its services of it from version 254 on only."""
    unit = (UNITS / "djinnd.service").read_text()
    (of_unit,) = re.findall(r"^FileDescriptorStoreMax=(\d+)$", unit, re.MULTILINE)
    limits = (UNITS.parents[1] / "ipc" / "limits.h").read_text()
    (of_code,) = re.findall(r"kKeptDescriptors =\s*(\d+);", limits)
    assert of_unit == of_code


def test_comments_stand_on_lines_of_their_own() -> None:
    """What follows a value is part of it."""
    for unit in UNITS.iterdir():
        for line in unit.read_text().splitlines():
            assert "#" not in line or line.startswith("#"), (unit.name, line)
