"""Formatting is a machine's work: clang-format for C and C++, ruff for Python."""

import subprocess
import sys
from pathlib import Path

from repo import CPP, ROOT, files_with

TOOLS = Path(sys.executable).parent
HINT = "run ./dev format"


def output_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-8000:] or "failed"


def test_c_and_cpp_files_are_formatted() -> None:
    clang_format = str(TOOLS / "clang-format")
    assert not output_of(clang_format, "--dry-run", "-Werror", *files_with(*CPP, ".c")), HINT


def test_python_files_are_formatted() -> None:
    assert not output_of(str(TOOLS / "ruff"), "format", "--no-cache", "--check", "."), HINT


def test_python_files_pass_the_linter() -> None:
    assert not output_of(str(TOOLS / "ruff"), "check", "--no-cache", "."), "ruff check"
