# SPDX-License-Identifier: Apache-2.0
"""What CMake makes of this tree, by what is installed beside it."""

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tree import ROOT

# Folders of site-packages: what is linked and included lies there.
READ_BY_CMAKE = ("torch", "nvidia")


def packages(list_name: str) -> list[str]:
    text = (ROOT / f"tools/requirements-{list_name}.txt").read_text()
    return re.findall(r"^([\w-]+)==", text, re.MULTILINE)


def environment_with(installed: list[str], folder: Path) -> Path:
    """This one, but that only these packages are installed: links to their files."""
    here = Path(sys.prefix)
    site = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True)
    for name in ("bin", "pyvenv.cfg"):
        (folder / name).symlink_to(here / name)
    for package in installed:
        for file in distribution(package).files or []:
            if file.parts[0] in READ_BY_CMAKE and file.suffix != ".pyc":
                link = site / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.locate())
    return folder


def targets(environment: Path, build: Path) -> set[str]:
    """Of a tree that is configured as `./dev build` does it where nothing was built before."""
    command = ["cmake", "--preset", "release", "-B", str(build), f"-DDJINN_VENV={environment}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = ["cmake", "--build", str(build), "--target", "help"]
    text = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^([\w-]+): phony$", text, re.MULTILINE))


@pytest.mark.ci
def test_the_fake_runtime_of_cuda_alone_needs_more_than_what_programs_run_with(
    tmp_path: Path,
) -> None:
    programs = re.search(r"^PROGRAMS=\((.*)\)$", (ROOT / "dev").read_text(), re.MULTILINE)
    assert programs is not None
    few = targets(environment_with(packages("run"), tmp_path / "run"), tmp_path / "build-run")
    both = [*packages("run"), *packages("cuda")]
    more = targets(environment_with(both, tmp_path / "both"), tmp_path / "build-both")
    assert {*programs[1].split(), "exec-test", "fake-cuda-driver"} <= few < more
    assert {"fake-cublas", "fake-cublaslt", "fake-torch", "exec-cuda-test"} <= more - few
    of_tests = re.compile("fake-.*|exec-cuda-test")
    assert [name for name in more - few if not of_tests.fullmatch(name)] == []
