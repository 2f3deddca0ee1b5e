# SPDX-License-Identifier: Apache-2.0
"""Verbs of `./dev`, in a copy of the repository whose build and environment are stand-ins."""

import shutil
import subprocess
from pathlib import Path

import pytest
from repo import ROOT

# A Python that says what it was called with, and where.
PYTHON = '#!/bin/sh\necho "$(pwd) $*"\n'


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All is installed and built."""
    root, programs = tmp_path / "copy", tmp_path / "bin"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "dev", root)
    (root / "tools/packages-debian.txt").write_text("# none\n")
    write_program(root / ".venv/bin/python", PYTHON)
    for name in ("run", "cuda", "test"):
        (root / f"tools/requirements-{name}.txt").write_text(f"{name}\n")
        (root / f".venv/.installed-{name}").write_text(f"{name}\n")
    (root / "build/release").mkdir(parents=True)
    (root / "build/release/build.ninja").touch()
    write_program(programs / "dpkg-query", "#!/bin/sh\n")
    write_program(programs / "cmake", "#!/bin/sh\necho 'ninja: no work to do.'\n")
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return root


def run_python(root: Path, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(root / "dev"), "python", *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=True)


def test_python_runs_where_the_caller_is_and_prints_what_the_program_prints(copy: Path) -> None:
    where = copy.parent / "elsewhere"
    where.mkdir()
    done = run_python(copy, where, "script.py", "-v")
    assert (done.stdout, done.stderr) == (f"{where} script.py -v\n", "")


def test_python_shows_what_had_to_be_built(copy: Path) -> None:
    write_program(copy.parent / "bin/cmake", "#!/bin/sh\necho '[1/1] Linking djinnd'\n")
    assert "Linking djinnd" in run_python(copy, copy, "script.py").stderr


def test_python_ends_where_the_build_fails(copy: Path) -> None:
    write_program(copy.parent / "bin/cmake", "#!/bin/sh\necho 'no compiler'; exit 1\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_python(copy, copy, "script.py")
    assert "no compiler" in failed.value.stderr
    assert failed.value.stdout == ""


def test_python_has_what_torch_and_transformers_import(copy: Path) -> None:
    (copy / ".venv/.installed-test").unlink()
    said = run_python(copy, copy, "script.py").stderr
    assert "-m pip install" in said
    assert "-r tools/requirements-test.txt" in said
    assert (copy / ".venv/.installed-test").exists()


def run_bundle(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Called in the folder that the copy lies in; the Python of the environment is a stand-in."""
    for name in ("make_bundle.py", "tree.py"):
        shutil.copy(ROOT / "tools" / name, copy / "tools")
    command = [str(copy / "dev"), "bundle", *arguments]
    return subprocess.run(command, cwd=copy.parent, capture_output=True, text=True)


def test_bundle_builds_what_it_takes_and_makes_the_folder_where_the_caller_is(copy: Path) -> None:
    write_program(copy.parent / "bin/cmake", '#!/bin/sh\necho cmake "$@"\n')
    done = run_bundle(copy, "new")
    assert done.returncode == 0, done.stderr
    programs = (
        "djinnd djinn-worker djinn-loader djinn-mover djinnctl djinn-cuda-worker djinn-python"
    )
    assert f" --target {programs} " in done.stderr
    assert done.stdout == f"{copy.parent} {copy}/tools/make_bundle.py new\n"


def test_bundle_refuses_a_folder_before_it_builds(copy: Path) -> None:
    write_program(copy.parent / "bin/cmake", "#!/bin/sh\necho building\n")
    done = run_bundle(copy, "copy")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"bundle: {copy} is not empty. Name a new folder" in done.stderr
    assert "building" not in done.stderr
    without = run_bundle(copy)
    assert (without.returncode, without.stderr) == (1, "dev: where to: bundle DIR\n")
