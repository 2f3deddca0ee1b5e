# SPDX-License-Identifier: Apache-2.0
"""The manual's examples do what the manual says: C programs, as a reader sees them, and lines for a
shell."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ctl
from private_daemon import BIN, ROOT, Daemon, wait_until

PAGES = ROOT / "man"
LIBRARY = BIN.parent / "lib"
C_PAGES = sorted([*(page.name for page in PAGES.glob("*.3.scd")), "djinn-srg.7.scd"])
# What the programs say, as a pattern; of those with an argument, which model it is.
SAID = {
    "libdjinn-client.3.scd": (None, r"library \d+\.\d+\.\d+\ndjinnd \d+\.\d+\.\d+\n"),
    "djinn-srg.7.scd": ("byte_model", r"e\n"),
    "djinn.hpp.3.scd": ("minilm", r"0\.\d\d\n"),
    "djinn_code_name.3.scd": (None, r"not_found\n"),
    "djinn_connect.3.scd": (None, r"sessions: \d+\n"),
    "djinn_encoder_open.3.scd": ("minilm", r"0\.\d\d\n"),
    "djinn_generator_open.3.scd": ("byte_model", r"(?s).{1,24}\n"),
    "djinn_model_load.3.scd": ("byte_model", r"[0-9a-f]{12}\n"),
    "djinn_program_define.3.scd": (None, r"2 4 6\n"),
    "djinn_ref_put.3.scd": (None, r"djinnd\n"),
    "djinn_tokenizer_open.3.scd": ("minilm", r"101\n7592\n2088\n1012\n102\n"),
}


def examples(page: str) -> list[str]:
    text = (PAGES / page).read_text().split("\n# EXAMPLES\n", 1)[1].split("\n# ", 1)[0]
    return re.findall(r"```\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if any(shutil.which(program) is None for program in ("scdoc", "man")):
        pytest.skip("scdoc and man are not both installed")
    made = tmp_path_factory.mktemp("manual")
    subprocess.run([sys.executable, str(ROOT / "tools/make_manual.py"), str(made)], check=True)
    return made


def shown_example(page: Path) -> str:
    """From its first line, an #include, to its last, a brace, as man shows them."""
    shown = subprocess.run(
        ["man", "-E", "UTF-8", "-l", str(page)],
        env={**os.environ, "MANWIDTH": "100", "MANPAGER": "cat"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    text = shown.split("\nEXAMPLES\n", 1)[1].split("\nSEE ALSO\n", 1)[0]
    program = re.search(r"^( +)#include.*^\1}\n", text, re.DOTALL | re.MULTILINE)
    assert program is not None, text
    return textwrap.dedent(program[0])


def environment(daemon: Daemon) -> dict[str, str]:
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, "DJINN_HOST": daemon.host, "PATH": path, "LD_LIBRARY_PATH": str(LIBRARY)}


@pytest.fixture(autouse=True)
def nothing_stays(daemon: Daemon) -> Iterator[None]:
    """Models that an example pins are unloaded."""
    yield
    for model in daemon.observer.models():
        wait_until(
            lambda model=model: ctl(daemon, "unload", model["id"]).code == 0,
            "the example's session is gone",
        )


def test_each_page_about_the_library_has_an_example() -> None:
    assert sorted(SAID) == C_PAGES


@pytest.mark.parametrize("page", C_PAGES)
def test_an_example_compiles_without_warnings_and_does_what_it_says(
    daemon: Daemon, manual: Path, tmp_path: Path, request: pytest.FixtureRequest, page: str
) -> None:
    code = shown_example(manual / page.removesuffix(".scd"))
    assert [code] == examples(page)
    compiler, suffix = (["c++", "-std=c++20"], "cc") if "hpp" in page else (["cc", "-std=c11"], "c")
    source = tmp_path / f"example.{suffix}"
    source.write_text(code)
    command = [*compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", str(source)]
    command += [f"-I{ROOT}/libdjinn-client/abi", str(LIBRARY / "libdjinn-client.so")]
    built = subprocess.run(
        [*command, "-o", str(tmp_path / "example")], capture_output=True, text=True, timeout=60
    )
    assert built.returncode == 0, built.stderr
    model, pattern = SAID[page]
    arguments = [] if model is None else [str(request.getfixturevalue(model))]
    ran = subprocess.run(
        [str(tmp_path / "example"), *arguments],
        env=environment(daemon),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(pattern, ran.stdout), ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("line", examples("djinnctl.1.scd"), ids=lambda text: text.split("\n")[0])
def test_an_example_for_a_shell_succeeds(daemon: Daemon, tmp_path: Path, line: str) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", line],
        env={**environment(daemon), "XDG_CONFIG_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert "djinnctl: It " not in ran.stderr


def test_the_example_that_asks_whether_djinnd_runs_tells_when_it_does_not(tmp_path: Path) -> None:
    (line,) = [one for one in examples("djinnctl.1.scd") if "$?" in one]
    nowhere = {"DJINN_HOST": "unix:/nonexistent", "PATH": f"{BIN}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", line], env=nowhere, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "it does not: 3\n"
