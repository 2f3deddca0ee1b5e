"""The manual agrees with the programs, and is clean troff."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from private_daemon import BIN, ROOT

PAGES = {page.name.removesuffix(".scd"): page for page in (ROOT / "man").glob("*.scd")}


def said(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
    ).stdout


def section(page: str, heading: str) -> str:
    text = PAGES[page].read_text()
    return text.split(f"\n# {heading}\n", 1)[1].split("\n# ", 1)[0]


def terms(page: str, heading: str) -> list[str]:
    """Lines that say what the indented text after them is about."""
    return re.findall(r"^(\*.*)\n\t", section(page, heading), re.MULTILINE)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def test_the_configurations_manual_has_each_key_and_what_reloads(tmp_path: Path) -> None:
    shown = said(str(BIN / "djinnd"), "--show-config", "--root", str(tmp_path))
    keys = dict(line.split("  # ")[0].split(" = ", 1) for line in shown.splitlines())
    text = section("djinnd.conf.5", "SETTINGS")
    assert terms("djinnd.conf.5", "SETTINGS") == [f"*{key}*" for key in keys]
    for entry in text.split("\n*")[1:]:
        key = entry.split("*", 1)[0]
        words = " ".join(entry.split())
        assert re.search(f'Default: "?{re.escape(keys[key])}', words), key
        reloads = re.search(
            rf'Setting{{"{re.escape(key)}".*?(true|false),\s*set_',
            (ROOT / "daemon/djinnd/config.cc").read_text(),
            re.DOTALL,
        )
        assert reloads is not None, key
        assert words.endswith("Reloads.") == (reloads[1] == "true"), key


def test_the_configurations_examples_are_accepted(tmp_path: Path) -> None:
    examples = re.findall(r"```\n(.*?)```", section("djinnd.conf.5", "EXAMPLES"), re.DOTALL)
    path = tmp_path / "etc/djinn/djinnd.conf"
    path.parent.mkdir(parents=True)
    assert examples
    for example in examples:
        path.write_text(example)
        said(str(BIN / "djinnd"), "--check-config", "--root", str(tmp_path))


def test_djinnds_manual_has_its_options() -> None:
    help_text = said(str(BIN / "djinnd"), "--help")
    in_manual = options_in("\n".join(terms("djinnd.8", "OPTIONS")))
    assert in_manual == options_in(help_text)


def test_djinnctls_manual_has_its_verbs_and_options() -> None:
    help_text = said(str(BIN / "djinnctl"), "--help")
    options, verbs = help_text.split("Subcommands:")
    listed = re.findall(r"^  ([a-z]+) ", verbs, re.MULTILINE)
    described = terms("djinnctl.1", "VERBS")
    assert sorted(re.findall(r"\*([a-z]+)\*", "\n".join(described))) == sorted(listed)
    in_manual = options_in("\n".join(terms("djinnctl.1", "OPTIONS")))
    assert in_manual == options_in(options)


def test_djinnctls_manual_has_its_exit_codes() -> None:
    code = (ROOT / "djinnctl/exit_code.h").read_text()
    assert terms("djinnctl.1", "EXIT STATUS") == [
        f"*{number}*" for number in re.findall(r"^  k\w+ = (\d+),", code, re.MULTILINE)
    ]


@pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("scdoc", "man", "mandoc")),
    reason="scdoc, man and mandoc are not all installed",
)
def test_pages_are_clean_troff(tmp_path: Path) -> None:
    said(sys.executable, str(ROOT / "tools/make_manual.py"), str(tmp_path))
    assert {page.name for page in tmp_path.iterdir()} == set(PAGES)
    for page in tmp_path.iterdir():
        for check in (
            ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)],
            ["mandoc", "-Tlint", str(page)],
        ):
            found = subprocess.run(check, capture_output=True, text=True, timeout=60)
            complaints = found.stderr if check[0] == "man" else found.stdout + found.stderr
            assert complaints == "", page.name
