#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder that runs where nothing can be installed: make_bundle.py DIR.

DIR gets the programs of a release build, stripped, and the libraries of Debian's that they need;
packaging/bundle/README.txt, which becomes its README, says what else. DIR.tar.xz is the same,
packed. PyTorch is not in it: bin/djinn-env finds the host's.
"""

import argparse
import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import tree

SOURCES = tree.ROOT / "packaging" / "bundle"
PROGRAMS = ("djinnd", "djinn-worker", "djinn-loader", "djinn-mover", "djinnctl")
CUDA_WORKER = "djinn-cuda-worker"  # where PyTorch is with CUDA
MODULES = ("djinn-python", "djinn-device")  # as targets of the build
# Those that need no file of the tree, and tell something of a host.
TESTS = (
    *("pal-test", "vmu-test", "gc-test", "executor-test", "exec-test", "worker-test"),
    *("djinnd-test", "djinnd-fake-worker-test", "djinnd-lying-mover-test"),
    *("exec-bench", "session-bench"),
    *("cuda-survive", "cuda-vmm", "cuda-confinement", "pal-cuda-test"),
)
# Every host has them: an older copy of ours would stand before what its other libraries need.
HOSTS_PACKAGES = {"libc6", "libstdc++6", "libgcc-s1"}
# Compiled into the tests; what is compiled into the rest, packaging/deb/debian/copyright says.
STATIC_PACKAGES = ("libgtest-dev",)
TOOLS = {"patchelf": "patchelf", "strip": "binutils", "readelf": "binutils"}
PACKED_BYTES_MAX = 24 << 20  # so that it can be sent by mail or kept in a repository


class Refused(Exception):
    """Why there is no bundle, and what to do."""


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --- what there is --------------------------------------------------------------------------------


def check_target(target: Path) -> None:
    packed = packed_name(target)
    if target.exists() and not target.is_dir():
        raise Refused(f"{target} is a file. Name a folder that is to be made")
    if target.is_dir() and any(target.iterdir()):
        raise Refused(f"{target} is not empty. Name a new folder, or remove this one first")
    if packed.exists():
        raise Refused(f"{packed} exists. Name another folder, or remove it first")
    if not target.parent.is_dir():
        raise Refused(f"there is no folder {target.parent}. Make it first")
    try:
        making_folder(target).cleanup()
    except OSError as error:
        what = f"{target.parent} cannot be written to: {error.strerror}"
        raise Refused(f"{what}. Name a folder in another place") from None


def packed_name(target: Path) -> Path:
    return target.with_name(f"{target.name}.tar.xz")


def making_folder(target: Path) -> TemporaryDirectory[str]:
    """What is not whole yet lies in a new folder beside it, which a call that is killed leaves."""
    return TemporaryDirectory(prefix=f"{target.name}.making-", dir=target.parent)


def check_build(build: Path) -> None:
    if absent := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        raise Refused(f"Debian's {', '.join(absent)} not installed; ./dev build installs it")
    absent = [name for name in programs() + TESTS if not (build / "bin" / name).is_file()]
    absent += [] if len(modules_of(build)) == len(MODULES) else ["the Python package"]
    if absent:
        raise Refused(f"{build} has no {', '.join(absent)}; ./dev build builds it")


def modules_of(build: Path) -> list[Path]:
    return sorted((build / "python" / "djinn").rglob("*.so"))


def torches() -> list[Path]:
    return list(tree.ROOT.glob(".venv/lib/python3*/site-packages/torch"))


@cache
def torch() -> Path:
    """The folder of the PyTorch that the programs were linked with."""
    if not (found := torches()):
        raise Refused("there is no PyTorch in .venv; ./dev build installs it")
    return found[0]


def programs() -> tuple[str, ...]:
    """With the worker for GPUs: what ./dev build installs where there is no PyTorch has CUDA."""
    without_cuda = [one for one in torches() if not (one / "lib/libc10_cuda.so").is_file()]
    return PROGRAMS if without_cuda else (*PROGRAMS, CUDA_WORKER)


@cache
def wheels_libraries() -> set[str]:
    """By name, of PyTorch's wheel and of those that it needs: bin/djinn-env finds the host's."""
    folders = [torch() / "lib", *torch().parent.glob("nvidia/*/lib")]
    return {path.name for folder in folders for path in folder.glob("*.so*")}


def torch_version() -> str:
    text = (tree.ROOT / "tools" / "requirements-run.txt").read_text()
    return re.findall(r"^torch==(.+)$", text, re.MULTILINE)[0]


def our_version() -> str:
    text = (tree.ROOT / "CMakeLists.txt").read_text()
    return re.findall(r"project\(djinnd VERSION (\S+)", text)[0]


# --- the libraries --------------------------------------------------------------------------------


def needed(file: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", said("readelf", "--dynamic", "--wide", str(file)))


@cache
def hosts_libraries() -> dict[str, Path]:
    """As the dynamic linker of this machine finds them, by their names."""
    found: dict[str, Path] = {}
    for line in said("/sbin/ldconfig", "-p").splitlines():
        if match := re.match(r"\s+(\S+) \(.*x86-64.*\) => (\S+)", line):
            found.setdefault(match[1], Path(match[2]))
    return found


@cache
def package_of(library: Path) -> str:
    """dpkg may know a file of /usr/lib by its path in /lib."""
    real = str(library.resolve())
    for path in (real, real.removeprefix("/usr"), f"/usr{real}"):
        done = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    raise Refused(f"{library} is of no Debian package, so its licence is unknown")


def libraries_for(files: list[Path]) -> dict[str, Path]:
    """What these need, and what that needs, but for what is wheels' or every host's."""
    taken: dict[str, Path] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        for name in needed(file):
            if name in taken or name in wheels_libraries():
                continue
            if name not in hosts_libraries():
                raise Refused(f"{file} needs {name}, which is nowhere")
            library = hosts_libraries()[name]
            if package_of(library) not in HOSTS_PACKAGES:
                taken[name] = library
                waiting.append(library)
    return taken


def newest_of(files: list[Path], prefix: str) -> str:
    """The newest version of this prefix that any of these asks for."""
    text = "".join(said("readelf", "--version-info", "--wide", str(file)) for file in files)
    found = set(re.findall(rf"\b{prefix}_([\d.]+)\b", text))
    return max(found, key=lambda version: [int(part) for part in version.split(".")])


# --- the folder -----------------------------------------------------------------------------------


def put(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def put_program(source: Path, target: Path, root: Path) -> None:
    """Stripped. DT_RPATH: lib/ comes before all else, and for what its libraries need, too."""
    put(source, target, 0o755)
    run_path = os.path.join("$ORIGIN", os.path.relpath(root / "lib", target.parent))
    said("strip", "--strip-unneeded", str(target))
    said("patchelf", "--force-rpath", "--set-rpath", run_path, str(target))


def put_programs(build: Path, root: Path) -> list[Path]:
    """Returns them as they were built."""
    built = [build / "bin" / name for name in programs() + TESTS]
    modules = modules_of(build)
    for program in built:
        put_program(program, root / "bin" / program.name, root)
    image = build / "cuda" / "kernels.fatbin"
    if CUDA_WORKER in programs() and image.is_file():  # that worker looks for it beside itself
        put(image, root / "bin" / image.name)
    for module in modules:
        put_program(module, root / "python" / module.relative_to(build / "python"), root)
    return built + modules


def put_python(root: Path) -> None:
    package = tree.ROOT / "python" / "djinn"
    for source in sorted(package.rglob("*")):
        if source.suffix in (".py", ".pyi", ".typed"):
            put(source, root / "python" / "djinn" / source.relative_to(package))


def put_licences(packages: set[str], root: Path) -> None:
    documents = root / "share" / "doc"
    put(tree.ROOT / "LICENSE", documents / "djinnd" / "LICENSE")
    put(tree.ROOT / "packaging/deb/debian/copyright", documents / "djinnd" / "copyright")
    versions = []
    for package in sorted(packages):
        source = Path("/usr/share/doc") / package / "copyright"
        put(source, documents / package / "copyright")
        shown = "${Package} ${Version} ${source:Package} ${source:Version}\n"
        versions.append(said("dpkg-query", "-W", "-f", shown, package).splitlines()[0])
    text = "".join(path.read_text() for path in sorted(documents.glob("*/copyright")))
    for name in sorted(set(re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text))):
        put(Path("/usr/share/common-licenses") / name, documents / "common-licenses" / name)
    head = "# package, its version, its source package, and that one's version\n"
    (documents / "packages").write_text(head + "".join(f"{line}\n" for line in versions))


def put_readme(facts: dict[str, str], root: Path) -> None:
    text = (SOURCES / "README.txt").read_text()
    for name, value in facts.items():
        text = text.replace(f"@{name.upper()}@", value)
    (root / "README").write_text(text)


def put_manifest(facts: dict[str, str], root: Path) -> None:
    lines = [f"# {name} {value}" for name, value in facts.items()]
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f"{digest}  {file.relative_to(root)}")
    (root / "MANIFEST").write_text("\n".join(lines) + "\n")


def open_to_all(root: Path) -> None:
    """Whatever the caller's umask is: djinnd's user may be another."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def fill(build: Path, root: Path) -> None:
    built = put_programs(build, root)
    libraries = libraries_for(built)
    for name, library in libraries.items():
        put(library, root / "lib" / name)
    put(SOURCES / "djinn_env.py", root / "bin" / "djinn-env", 0o755)
    put_python(root)
    put_licences({package_of(one) for one in libraries.values()} | set(STATIC_PACKAGES), root)
    binaries = [*built, *libraries.values()]
    python = re.findall(r"cpython-(\d)(\d+)-", str(built[-1]))[0]
    facts = {
        **{"djinnd": our_version(), "torch": torch_version(), "python": ".".join(python)},
        **{"machine": platform.machine(), "glibc": newest_of(binaries, "GLIBC")},
        "glibcxx": newest_of(binaries, "GLIBCXX"),
    }
    tests = textwrap.fill(", ".join(TESTS), 86).replace("\n", "\n" + " " * 14)
    put_readme({**facts, "version": facts["djinnd"], "tests": tests}, root)
    put_manifest(facts, root)
    open_to_all(root)


def unowned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


def pack(root: Path, packed: Path, name: str, preset: int) -> int:
    """Returns its size."""
    with (
        lzma.open(packed, "wb", preset=preset) as file,
        tarfile.open(fileobj=file, mode="w") as archive,
    ):
        archive.add(root, arcname=name, filter=unowned)
    return packed.stat().st_size


def make(
    build: Path, target: Path, packed_bytes_max: int = PACKED_BYTES_MAX, preset: int = 6
) -> Path:
    """Returns the bundle, packed by xz with that preset. What fails leaves nothing."""
    check_target(target)
    check_build(build)
    with making_folder(target) as folder:
        making = Path(folder) / target.name
        packing = packed_name(making)
        making.mkdir()
        fill(build, making)
        size = pack(making, packing, target.name, preset)
        if size > packed_bytes_max:
            raise Refused(
                f"it has {size / 2**20:.1f} MiB packed, and {packed_bytes_max >> 20} are allowed: "
                "take programs out of TESTS in tools/make_bundle.py"
            )
        making.rename(target)
        packing.rename(packed_name(target))
    return packed_name(target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bundle")
    parser.add_argument("target", metavar="DIR", type=Path, help="the folder to be made")
    parser.add_argument("--targets", action="store_true", help="print what is to be built for it")
    parser.add_argument("--build", type=Path, default=tree.ROOT / "build" / "release")
    options = parser.parse_args()
    target = options.target.absolute()
    try:
        if options.targets:
            check_target(target)
            print("\n".join(programs() + MODULES + TESTS))
        else:
            packed = make(options.build.absolute(), target)
            print(f"{target}\n{packed}")
    except (Refused, OSError) as why:
        print(f"bundle: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
