# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's compiler makes of our kernels (kernel/exec/cuda/kernels), for each device: nothing
is spilled, and what decides a token step's speed is read 16 bytes at a time, in as many loads at
once as its kernel says. No GPU is asked.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tree import ROOT

KERNELS = ROOT / "kernel" / "exec" / "cuda" / "kernels"
IMAGE = Path(os.environ["DJINN_BUILD_DIR"]) / "cuda" / "kernels.fatbin"
DEVICES = ("sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")
ELEMENTS = ("float32", "bfloat16", "float16")
KERNEL_NAMES = {
    "djinn_checksum",
    "djinn_draw",
    "djinn_attend_rows",
    *(
        f"djinn_{kernel}_{element}_{rows}"
        for kernel in ("gemv", "turned_gemv")
        for element in ELEMENTS
        for rows in (1, 2, 4, 8)
    ),
    *(f"djinn_attend_{element}_{heads}" for element in ELEMENTS for heads in (1, 4, 8)),
    *(
        f"djinn_{kernel}_{element}"
        for element in ELEMENTS
        for kernel in ("attend_combine", "norm", "rope_append", "turn", "gate")
    ),
}
LOAD = re.compile(r"\bLDG\.E[.\w]*")
# A whole vector, which the caches keep for nobody; others are read by way of the L1.
STREAMED = "LDG.E.EF.128"
MULTIPLICATION = re.compile(r"\bFFMA\b")
LOCAL_MEMORY = re.compile(r"\b(LDL|STL)\b")


@cache
def tools() -> Path:
    found = sorted(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc"))
    if not found:
        pytest.skip("nvcc is not installed: what it makes of our kernels cannot be seen")
    return found[0].parent


def told(*arguments: str) -> str:
    """What cuobjdump, which calls nvdisasm, says of the image."""
    assert tools() and IMAGE.exists(), "nvcc is installed, and no image was built"
    path = f"{tools()}:{os.environ['PATH']}"
    command = [str(tools() / "cuobjdump"), *arguments, str(IMAGE)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}
    ).stdout


@cache
def resources() -> dict[str, dict[str, str]]:
    """Of each device, what cuobjdump says of each kernel's resources."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"^arch = ", told("-res-usage"), flags=re.MULTILINE)[1:]:
        kernels = re.findall(r"Function (\w+):\n\s*(.*)", part)
        if kernels:
            found.setdefault(part.split()[0], {}).update(kernels)
    return found


@cache
def code(device: str) -> dict[str, list[str]]:
    """The instructions of each kernel."""
    listed = told("-sass", "-arch", device)
    parts = re.split(r"^\s*Function : (\w+)$", listed, flags=re.MULTILINE)[1:]
    instruction = re.compile(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);")
    return {
        name: instruction.findall(text) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def loads(instructions: list[str]) -> list[str]:
    return [found[0] for text in instructions if (found := LOAD.search(text))]


def streamed_at_once(instructions: list[str]) -> int:
    """How many vectors are under way before one is multiplied, at most."""
    most = count = 0
    for text in instructions:
        if MULTIPLICATION.search(text):
            count = 0
        elif STREAMED in text:
            count += 1
            most = max(most, count)
    return most


@pytest.mark.ci
def test_the_image_has_each_kernel_for_each_device_and_code_for_later_ones() -> None:
    assert set(resources()) == set(DEVICES)
    for device in DEVICES:
        assert set(resources()[device]) == KERNEL_NAMES, device
    assert ".target sm_90" in told("-ptx")


@pytest.mark.ci
def test_no_kernel_has_a_stack_or_spills() -> None:
    found = [
        f"{device}: {kernel}: {usage}"
        for device in DEVICES
        for kernel, usage in resources()[device].items()
        if not re.search(r"\bSTACK:0\b", usage) or not re.search(r"\bLOCAL:0\b", usage)
    ]
    assert not found, "\n".join(found)


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_no_instruction_reads_or_writes_local_memory(device: str) -> None:
    assert set(code(device)) == KERNEL_NAMES
    for kernel, instructions in code(device).items():
        assert not any(LOCAL_MEMORY.search(text) for text in instructions), kernel


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_read_once_is_read_by_whole_vectors(device: str) -> None:
    for kernel, instructions in code(device).items():
        streamed = {load for load in loads(instructions) if ".EF" in load}
        reads_once = re.match(r"djinn_((turned_)?gemv|checksum|attend_\w+_\d)", kernel)
        assert streamed == ({STREAMED} if reads_once else set()), kernel
        if kernel.startswith("djinn_norm"):
            assert set(loads(instructions)) == {"LDG.E.128"}, kernel


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_a_product_has_many_loads_under_way(device: str) -> None:
    for kernel, instructions in code(device).items():
        if kernel.startswith("djinn_gemv"):
            least = 4 if kernel.endswith("_8") else 8
            assert streamed_at_once(instructions) >= least, kernel
