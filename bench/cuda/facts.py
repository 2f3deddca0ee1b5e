#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stage 00: what machine this is. No call of the driver's: nvidia-smi, /proc and /dev tell."""

import os
import platform
import shutil
import stat
import subprocess
from importlib import metadata
from pathlib import Path

from stage import Stage, not_possible

QUERY = (
    "name,driver_version,vbios_version,memory.total,memory.used,persistence_mode,compute_mode,"
    "mig.mode.current,ecc.mode.current,pcie.link.gen.current,pcie.link.width.current,"
    "clocks.max.sm,clocks.max.memory,power.limit,temperature.gpu"
)
PACKAGES = ("torch", "transformers", "triton", "nvidia-cudnn-cu13", "nvidia-cublas")


def output_of(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return found.stdout.strip() if found.returncode == 0 else found.stderr.strip()


def line_of(path: str, start: str) -> str:
    lines = [line for line in Path(path).read_text().splitlines() if line.startswith(start)]
    return lines[0].partition(":")[2].strip() if lines else "not told"


def nodes() -> str:
    found = sorted(Path("/dev").glob("nvidia*"))
    return ", ".join(
        f"{node} {stat.filemode(node.stat().st_mode)} {node.owner()}:{node.group()}"
        for node in found
        if not node.is_dir()
    )


def main() -> None:
    say = Stage.fact
    if shutil.which("nvidia-smi") is None:
        not_possible("there is no nvidia-smi: no NVIDIA driver")
    answers = output_of("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader").split(", ")
    for name, value in zip(QUERY.split(","), answers, strict=False):
        say(name, value)
    devices = Path("/proc/devices").read_text().splitlines()
    say("majors", ", ".join(line.strip() for line in devices if "nvidia" in line))
    say("nodes", nodes())
    say("kernel", platform.release())
    say("kernel's security modules", output_of("cat", "/sys/kernel/security/lsm"))
    say("module", output_of("cat", "/proc/driver/nvidia/version").partition("\n")[0])
    say("processor", line_of("/proc/cpuinfo", "model name"))
    say("processors", os.cpu_count() or "not told")
    say("memory", line_of("/proc/meminfo", "MemTotal"))
    say("libc", " ".join(platform.libc_ver()))
    say("python", platform.python_version())
    for package in PACKAGES:
        try:
            say(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            say(package, "not installed")
    say("nvcc", output_of("nvcc", "--version").splitlines()[-1] if shutil.which("nvcc") else "none")


if __name__ == "__main__":
    main()
