#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Boots a Debian 12 in a container, installs our packages there with apt, and tells what
tests/boot/inside.sh saw.

Exits with 0 if all is as it should be, 1 if not, 77 where it is not permitted or something is
missing, which is said.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apt_repository
import jeepney
import make_packages

TREE = Path(__file__).resolve().parents[1]
CACHE = TREE / "build" / "boot"
RELEASE = "bookworm"
# What apt would fetch for our packages and their tests: a container has no network.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "bash-completion", "man-db", "python3", "python3-numpy"),
    *("libuv1", "libcapnp-0.9.2", "libfmt9", "libseccomp2", "libssl3", "libstdc++6"),
    *("libtomlplusplus3", "libprometheus-cpp-core1.0", "libonig5", "libutf8proc2"),
    *("g++", "cmake", "make", "pkgconf"),
)
# Upgrades that the booted system makes.
UPGRADES = 2
PLACE = "usr/lib/djinn-test"  # of what the test itself needs, in the booted system
UNIT = f"""[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=PLACE=/{PLACE} UPGRADES={UPGRADES}
StandardOutput=file:/results
ExecStart={{command}}
ExecStopPost=systemctl poweroff --no-block
[Install]
WantedBy=multi-user.target
"""
TEST = f"/bin/bash /{PLACE}/source/tests/boot/inside.sh"
PROBE = "/bin/echo it boots"
# For what hangs; two busy cores need a tenth.
ROOT_S_MAX = 600
BOOT_S_MAX = 600
PROBE_S_MAX = 60
# A cgroup with this much memory kills whoever takes more.
OOM_BYTES = 4096


def missing() -> str | None:
    """Why this cannot be done here, or None."""
    if os.geteuid() != 0:
        return "it needs root"
    for program, package in (("systemd-nspawn", "systemd-container"), ("mmdebstrap",) * 2):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian's {package})"
    if absent := apt_repository.missing_tools():
        return f"Debian's {', '.join(absent)} not installed"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode != 0:
        return "namespaces are not permitted here"
    return make_packages.missing()


def make_root() -> Path:
    """The file system of a system that boots, made once. Raises CalledProcessError or
    TimeoutExpired where Debian is out of reach."""
    root = CACHE / "root"
    stamp = CACHE / "root.packages"
    made_of = "\n".join((RELEASE, *PACKAGES))
    if root.is_dir() and stamp.is_file() and stamp.read_text() == made_of:
        return root
    stamp.unlink(missing_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    made = CACHE / "making"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--dpkgopt=force-unsafe-io"]
    command += [f"--include={','.join(PACKAGES)}", RELEASE, str(made)]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=ROOT_S_MAX)
    (made / "etc/apt/sources.list").write_text("")
    made.rename(root)
    stamp.write_text(made_of)
    return root


@contextlib.contextmanager
def copy_of(root: Path, place: Path) -> Iterator[Path]:
    """A root of which nothing is kept: an overlay, or else a copy."""
    parts = {part: place / part for part in ("upper", "work", "root")}
    for part in parts.values():
        part.mkdir()
    options = f"lowerdir={root},upperdir={parts['upper']},workdir={parts['work']}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["root"])]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield parts["root"]
        finally:
            subprocess.run(["umount", str(parts["root"])], check=True)
    else:
        subprocess.run(["cp", "-a", "--reflink=auto", f"{root}/.", parts["root"]], check=True)
        yield parts["root"]


@contextlib.contextmanager
def tight_cgroup() -> Iterator[Path | None]:
    """A control group in which whoever takes memory is killed; None where that is not permitted."""
    name = f"djinn-boot-test-{os.getpid()}"
    for top, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(OOM_BYTES))
                yield group
                return
        finally:
            group.rmdir()
    yield None


def nspawn(root: Path, *arguments: str, timeout_s: int) -> str:
    """What was said on the console, until it ended or was ended."""
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]
    # Its own filter of system calls is older than Landlock.
    landlock = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
    command += [f"--system-call-filter={' '.join(landlock)}", "--console=pipe"]
    command += [f"--machine=djinn-boot-test-{os.getpid()}"]
    try:
        return subprocess.run(
            [*command, f"--directory={root}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            errors="replace",
            timeout=timeout_s,
        ).stdout
    except subprocess.TimeoutExpired as ended:
        said = ended.stdout or b""  # bytes, whatever was asked for
        return said.decode(errors="replace") + f"\nended after {timeout_s} s"


def make_repositories(packages: list[Path], place: Path) -> None:
    """place/0: the packages as they are; 1, 2...: higher versions; forged: one not as signed."""
    changing = [package for package in packages if not package.name.startswith("djinn-torch_")]
    with apt_repository.Key() as key:
        apt_repository.make_repository(place / "0", packages, key)
        for upgrade in range(1, UPGRADES + 1):
            made = place / f"packages-{upgrade}"
            made.mkdir()
            version = re.findall(r"_([^_]+)_", changing[0].name)[0] + f"+upgrade{upgrade}"
            higher = [apt_repository.with_version(package, version, made) for package in changing]
            apt_repository.make_repository(place / str(upgrade), higher, key)
        apt_repository.make_repository(place / "forged", changing, key)
        with (place / "forged" / "Packages").open("a") as listed:
            listed.write("\n")
        (place / "key.gpg").write_bytes(key.public)


def furnish(place: Path, packages: list[Path]) -> None:
    """Puts into a folder what the test needs. djinnd keeps descriptors of files on block devices
    only, and an overlay is none: so it lies beside the root."""
    make_repositories(packages, place / "repository")
    shutil.copytree(Path(jeepney.__file__).parent, place / "python/jeepney")
    for part in ("tests/boot", "models/bytes", "examples"):
        shutil.copytree(TREE / part, place / "source" / part)
    shutil.copytree(make_packages.DEBIAN / "tests", place / "source/debian/tests")


def prepare(root: Path, command: str) -> None:
    """Has the system run the command when it has booted."""
    (root / PLACE).mkdir(parents=True)
    (root / "results").touch()
    units = root / "etc/systemd/system"
    (units / "inside.service").write_text(UNIT.format(command=command))
    wanted = units / "multi-user.target.wants/inside.service"
    wanted.parent.mkdir(exist_ok=True)
    wanted.symlink_to("/etc/systemd/system/inside.service")


def power_on(root: Path, command: str, *binds: str, timeout_s: int) -> tuple[list[str], str]:
    """What the command said in the booted system, and what the console did."""
    prepare(root, command)
    console = nspawn(root, "--boot", *binds, timeout_s=timeout_s)
    return (root / "results").read_text().splitlines(), console


def obstacle(root: Path) -> str | None:
    """Why no system boots here, such as in a container; or None."""
    with tempfile.TemporaryDirectory(dir=CACHE) as one, copy_of(root, Path(one)) as copy:
        said, console = power_on(copy, PROBE, timeout_s=PROBE_S_MAX)
    if said == ["it boots"]:
        return None
    return "systemd-nspawn boots nothing here: " + " | ".join(console.split("\n")[-3:])


def boot(root: Path, packages: list[Path]) -> list[str]:
    """What was said inside."""
    with (
        tempfile.TemporaryDirectory(dir=CACHE) as one,
        copy_of(root, Path(one)) as copy,
        tight_cgroup() as group,
    ):
        Path(one).chmod(0o755)  # for the booted system's users
        furnish(Path(one) / "place", packages)
        binds = [f"--bind-ro={one}/place:/{PLACE}"]
        binds += [f"--bind={group}:/oom"] if group else []
        said, console = power_on(copy, TEST, *binds, timeout_s=BOOT_S_MAX)
    if said[-1:] != ["done"]:
        print(console, file=sys.stderr)
        said.append("not ok it looked at all, and powered off")
    return said


def skip(why: str) -> int:
    print(f"boot-test: SKIPPED: {why}", file=sys.stderr)
    return 77


def main() -> int:
    if why := missing():
        return skip(why)
    try:
        root = make_root()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return skip(f"mmdebstrap cannot get a Debian here: {error}")
    if why := obstacle(root):
        return skip(why)
    packages = make_packages.build(make_packages.QUICK)
    said = boot(root, packages)
    print("\n".join(said))
    passed = sum(line.startswith("ok ") for line in said)
    failed = sum(line.startswith("not ok ") for line in said)
    skipped = sum(line.startswith("skipped ") for line in said)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
