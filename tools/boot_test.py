#!/usr/bin/env python3
"""Boots a Debian 12 with djinnd in a container, and tells what tests/boot/inside.sh saw there.

Exits with 0 if all is as it should be, 1 if not, 77 where it is not permitted or something is
missing, which is said.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
BIN = TREE / "build" / "release" / "bin"
CACHE = TREE / "build" / "boot"
RELEASE = "bookworm"
# What our programs are linked with, beside a system that boots.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "libprometheus-cpp-core1.0"),
    *("libuv1", "libcapnp-0.9.2", "libfmt9", "libseccomp2", "libssl3", "libstdc++6"),
)
PLACES = {
    "usr/sbin/djinnd": BIN / "djinnd",
    "usr/bin/djinnctl": BIN / "djinnctl",
    "usr/libexec/djinn/djinn-worker": BIN / "djinn-worker",
    "usr/libexec/djinn/djinn-loader": BIN / "djinn-loader",
}
FILES = {
    "etc/systemd/system/djinnd.socket": "packaging/systemd/djinnd.socket",
    "etc/systemd/system/djinnd.service": "packaging/systemd/djinnd.service",
    "etc/systemd/system/djinnd-metrics.socket": "packaging/systemd/djinnd-metrics.socket",
    "usr/lib/sysusers.d/djinn.conf": "packaging/systemd/djinn.sysusers",
    "usr/lib/djinn-test/inside.sh": "tests/boot/inside.sh",
}
MODEL = "usr/lib/djinn-test/model"
UNIT = f"""[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=MODEL=/{MODEL}
StandardOutput=file:/results
ExecStart=/bin/bash /usr/lib/djinn-test/inside.sh
[Install]
WantedBy=multi-user.target
"""
BOOT_S_MAX = 240


def missing() -> str | None:
    if os.geteuid() != 0:
        return "it needs root"
    for program, package in (("systemd-nspawn", "systemd-container"), ("debootstrap",) * 2):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian's {package})"
    return None


def make_root() -> Path:
    """The file system of a system that boots, made once."""
    root = CACHE / "root"
    if list((root / "usr/lib").glob("*/libprometheus-cpp-core.so.1.0")):
        return root
    shutil.rmtree(root, ignore_errors=True)
    made = CACHE / "making"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE]
    subprocess.run([*command, str(made)], check=True, stdout=subprocess.DEVNULL)
    made.rename(root)
    return root


def install(root: Path) -> None:
    for place, program in PLACES.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).unlink(missing_ok=True)
        (root / place).symlink_to(program)
    for place, source in FILES.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TREE / source, root / place)
    shutil.copytree(TREE / "models/bytes", root / MODEL, dirs_exist_ok=True)
    units = root / "etc/systemd/system"
    (units / "inside.service").write_text(UNIT)
    wanted = units / "multi-user.target.wants/inside.service"
    wanted.parent.mkdir(exist_ok=True)
    wanted.unlink(missing_ok=True)
    wanted.symlink_to("/etc/systemd/system/inside.service")


def boot(root: Path) -> list[str]:
    """What was said inside."""
    with tempfile.TemporaryDirectory(dir=CACHE) as one:
        copy = Path(one) / "root"
        subprocess.run(["cp", "-a", "--reflink=auto", str(root), str(copy)], check=True)
        install(copy)
        (Path(one) / "root/results").touch()
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot"]
        console = subprocess.run(
            [*command, f"--directory={copy}", f"--bind-ro={TREE}", "--console=pipe"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=BOOT_S_MAX,
        ).stdout
        said = (copy / "results").read_text().splitlines()
    if not said:
        print(console, file=sys.stderr)
    return said


def main() -> int:
    if why := missing():
        print(f"boot-test: SKIPPED: {why}", file=sys.stderr)
        return 77
    said = boot(make_root())
    print("\n".join(said))
    passed = sum(line.startswith("ok ") for line in said)
    failed = sum(line.startswith("not ok ") for line in said)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed and said[-1] == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
