# SPDX-License-Identifier: Apache-2.0
"""Formatting is a machine's work: clang-format for C and C++, ruff for Python."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from repo import CPP, ROOT, expect_none, files_with

TOOLS = Path(sys.executable).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def expect_success(*command: str) -> None:
    done = run(*command)
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_c_and_cpp_files_are_formatted() -> None:
    clang_format = str(TOOLS / "clang-format")
    done = run(clang_format, "--dry-run", "-Werror", *files_with(*CPP, ".c"))
    complaints = re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, re.MULTILINE)
    expect_none(sorted(set(complaints)), "`./dev format` mends:")
    assert done.returncode == 0, done.stderr


def test_python_files_are_formatted() -> None:
    expect_success(str(TOOLS / "ruff"), "format", "--no-cache", "--check", ".")


def test_python_files_pass_the_linter() -> None:
    expect_success(str(TOOLS / "ruff"), "check", "--no-cache", ".")
