# SPDX-License-Identifier: Apache-2.0
"""A time is written in one way wherever one is taken, and means the same."""

import subprocess
from pathlib import Path

import pytest
from command_line import ctl
from private_daemon import BIN, Daemon

# Seconds of each. All are within the bounds of every option and setting.
TIMES = {"500ms": 0.5, "10s": 10, "1m": 60, "1min": 60, "1h": 3600}
WRONG = ["soon", "5", "1.5s", "-1s", "5M", "1 year", ""]
SETTINGS = {
    "spill-after": "memory.spill_after",
    "keep-alive": "model.keep_alive",
    "drain-timeout": "service.drain_timeout",
    "hang-timeout": "worker.hang_timeout",
}


def check(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "djinnd"), "--check-config", "--root", str(root), *options],
        capture_output=True,
        text=True,
        timeout=60,
    )


def write(root: Path, key: str, value: str) -> None:
    (root / "etc" / "djinn").mkdir(parents=True, exist_ok=True)
    (root / "etc" / "djinn" / "djinnd.conf").write_text(f'{key} = "{value}"\n')


@pytest.mark.parametrize("option", SETTINGS)
def test_djinnd_takes_it_on_its_command_line_and_in_its_file(option: str, tmp_path: Path) -> None:
    for text in TIMES:
        assert check(tmp_path, f"--{option}={text}").returncode == 0, text
    for text in WRONG:
        assert check(tmp_path, f"--{option}={text}").returncode == 2, text
    for text in [*TIMES, *WRONG]:
        write(tmp_path, SETTINGS[option], text)
        assert check(tmp_path).returncode == (0 if text in TIMES else 1), text


def test_djinnctl_takes_it_and_a_number_of_seconds(daemon: Daemon) -> None:
    for words in (["--timeout"], ["top", "-n1", "--delay"]):
        verb = ["devices"] if len(words) == 1 else []
        for text in [*TIMES, "5", "0.5"]:
            assert ctl(daemon, *words, text, *verb).code == 0, (words, text)
        for text in [text for text in WRONG if text != "5"]:
            assert ctl(daemon, *words, text, *verb).code == 2, (words, text)


def test_a_stay_is_as_long_as_was_said(daemon: Daemon, byte_model: Path) -> None:
    for text, seconds in {**TIMES, "1d": 86400, "0": 0}.items():
        assert ctl(daemon, "load", "--keep-alive", text, str(byte_model)).code == 0, text
        # That of 0 has gone.
        stay = [one["keep_alive_seconds"] for one in ctl(daemon, "ps", "-j").items()]
        assert stay == [seconds] or (text in ("0", "500ms") and stay == []), text
    for text in WRONG:
        assert ctl(daemon, "load", "--keep-alive", text, str(byte_model)).code == 2, text
