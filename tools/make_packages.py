#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the Debian packages: make_packages.py [--quick] [--cuda].

The tree, with packaging/deb/debian at its root, is staged in build/deb/source, built there by
dpkg-buildpackage, and the packages are put into build/deb/out. What was compiled stays, so that
the next call compiles what has changed. djinn-torch, which is large, is packed again only when
PyTorch's version or what makes the package has changed.

--quick: for tests, in build/deb-quick. Nothing is compiled: the files are those of build/release.
The packages are not compressed; there are none of debug information, and no source package.

--cuda: djinn-torch-cuda, too: the worker for GPUs with libraries of NVIDIA's, for the machine that
made it. It has gigabytes, and is not compressed.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tree

TREE = tree.ROOT
DEBIAN = TREE / "packaging" / "deb" / "debian"
TOOLS = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "dh_python3": "dh-python"}
TOOLS |= {"scdoc": "scdoc", "ninja": "ninja-build"}
PACKAGES = (
    *("djinnd", "djinnctl", "libdjinn-client1", "libdjinn-client-dev", "python3-djinn"),
    *("djinn-reach", "djinn-gate", "djinn-cuda", "djinn-torch"),
)
CUDA_PACKAGE = "djinn-torch-cuda"
CUDA_LIBRARIES = TREE / "packaging" / "cuda_libraries.txt"


@dataclass(frozen=True)
class Job:
    work: Path  # its `source` is the staged tree
    compression: str  # as dpkg-deb's -Z
    built: Path | None = None  # a build tree to take the programs from
    out_name: str = "out"  # of the folder that gets the packages
    environment: tuple[tuple[str, str], ...] = ()
    cuda: bool = False  # with CUDA_PACKAGE

    @property
    def source(self) -> Path:
        return self.work / "source"

    @property
    def out(self) -> Path:
        return self.work / self.out_name


RELEASE = Job(TREE / "build" / "deb", "xz")
QUICK = Job(TREE / "build" / "deb-quick", "none", TREE / "build" / "release")


def missing() -> str | None:
    """Why packages cannot be built here, or None."""
    absent = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if absent:
        return f"Debian's {', '.join(absent)} not installed"
    if not list(TREE.glob(".venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so")):
        return "there is no PyTorch in .venv (./dev build makes it)"
    return None


@dataclass(frozen=True)
class Library:
    """A row of CUDA_LIBRARIES."""

    path: str  # in the folder of wheels
    wheel: str
    licence: str
    text: str


def cuda_libraries() -> list[Library]:
    lines = CUDA_LIBRARIES.read_text().splitlines()
    return [Library(*line.split()) for line in lines if not line.startswith("#")]


def missing_for_cuda() -> str | None:
    """Why CUDA_PACKAGE cannot be built here, or None."""
    places = list(TREE.glob(".venv/lib/python3*/site-packages"))
    wanted = cuda_libraries()
    absent = {one.wheel for one in wanted if not any((at / one.path).is_file() for at in places)}
    if absent:
        return f".venv has no {', '.join(sorted(absent))} (./dev deb --cuda installs it)"
    return None


def is_same(one: Path, other: Path) -> bool:
    try:
        a, b = one.stat(), other.stat()
    except FileNotFoundError:
        return False
    return (a.st_size, a.st_mtime_ns, a.st_mode) == (b.st_size, b.st_mtime_ns, b.st_mode)


def stage(source: Path) -> None:
    """Brings the staged tree up to date. What is unchanged keeps its time, for ninja's sake."""
    source.mkdir(parents=True, exist_ok=True)
    files = tree.files()
    wanted = set(files)
    for path in sorted(source.rglob("*"), reverse=True):
        name = str(path.relative_to(source))
        if name.startswith("obj-"):
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif name not in wanted:
            path.unlink()
    for name in files:
        if not is_same(TREE / name, source / name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, source / name)
    shutil.copytree(DEBIAN, source / "debian")


def run(command: list[str], where: Path, **environment: str) -> None:
    subprocess.run(
        command,
        cwd=where,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={**os.environ, **environment},
    )


def torch_key(job: Job) -> str:
    """Names what djinn-torch is made of."""
    parts = [job.compression, (TREE / "tools/requirements-run.txt").read_text()]
    files = [DEBIAN / "rules", DEBIAN / "copyright", *sorted(DEBIAN.glob("djinn-torch*"))]
    files += [TREE / "cmake/DjinnTorch.cmake", TREE / "packaging/CMakeLists.txt"]
    parts += [file.read_text() for file in files]
    parts += re.findall(r"^Package: djinn-torch\n.*", (DEBIAN / "control").read_text(), re.S | re.M)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def settings(job: Job, has_torch: bool) -> dict[str, str]:
    options = [f"parallel={os.cpu_count()}", *(["noautodbgsym"] if job.built else [])]
    profiles = ["pkg.djinnd.notorch"] if has_torch else []
    profiles += ["pkg.djinnd.cuda"] if job.cuda else []
    return {
        "DEB_BUILD_OPTIONS": " ".join(options),
        "DEB_BUILD_PROFILES": " ".join(profiles),
        "DJINN_VENV": str(TREE / ".venv"),
        "DPKG_DEB_COMPRESSOR_TYPE": job.compression,
        **({"DJINN_BUILT": str(job.built)} if job.built else {}),
        **dict(job.environment),
    }


def made_in(work: Path) -> list[Path]:
    """What dpkg's tools left beside the staged tree."""
    return [path for path in work.iterdir() if path.is_file()]


def fingerprint(job: Job) -> str:
    """Changes when what the packages are made of does."""
    files = [TREE / name for name in tree.files()]
    for folder in ("bin", "lib", "packaging", "python"):
        files += [path for path in sorted((job.built or TREE).glob(f"{folder}/**/*"))]
    times = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    return hashlib.sha256(repr((torch_key(job), job.cuda, times)).encode()).hexdigest()


def build(job: Job) -> list[Path]:
    """Builds and returns the packages. Where nothing is compiled, they stay if nothing changed."""
    made_of = fingerprint(job) if job.built else ""
    stamp = job.work / "stamp"
    if job.built and stamp.is_file() and stamp.read_text() == made_of:
        return sorted(job.out.glob("*.deb"))
    stage(job.source)
    kept = job.work / "torch" / torch_key(job)
    has_torch = kept.is_dir()
    for old in made_in(job.work):
        old.unlink()
    if job.built is None:
        run(["dpkg-source", "-Iobj-*", "-b", "source"], job.work)
    command = ["dpkg-buildpackage", "-us", "-uc", "-b", "-nc"]
    run(command, job.source, **settings(job, has_torch))
    if not has_torch:
        making = kept.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        for package in job.work.glob("djinn-torch_*.deb"):
            package.rename(making / package.name)
        making.rename(kept)
    shutil.rmtree(job.out, ignore_errors=True)
    job.out.mkdir(parents=True)
    for package in kept.glob("*.deb"):
        os.link(package, job.out / package.name)
    for made in made_in(job.work):
        made.rename(job.out / made.name)
    if job.built:
        stamp.write_text(made_of)
    return sorted(job.out.glob("*.deb"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev deb")
    parser.add_argument("--quick", action="store_true", help="for tests: less, and uncompressed")
    parser.add_argument("--cuda", action="store_true", help=f"{CUDA_PACKAGE}, too: for GPUs")
    options = parser.parse_args()
    if why := missing() or (missing_for_cuda() if options.cuda else None):
        print(f"deb: {why}", file=sys.stderr)
        return 1
    packages = build(replace(QUICK if options.quick else RELEASE, cuda=options.cuda))
    print("\n".join(str(package.relative_to(TREE)) for package in packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
