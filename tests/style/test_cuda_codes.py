# SPDX-License-Identifier: Apache-2.0
"""The codes after which a process has to end are those of which NVIDIA's header says so."""

import re
import sys
from pathlib import Path

import pytest
from repo import text_of

DRIVER_API = "kernel/pal/cuda/driver_api"
END = re.compile(r"inconsistent state|process must be terminated|cannot be used anymore")
# Errors of memory and of a link, of which the header says only that they cannot be corrected.
SILENT = {"ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE"}


def headers_codes() -> dict[str, tuple[int, str]]:
    """Number and comment of each, by its name without CUDA_ERROR_."""
    found = list(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/include/cuda.h"))
    if not found:
        pytest.skip("cuda.h is not here: it comes with PyTorch for CUDA")
    text = found[0].read_text()
    codes = text[text.index("typedef enum cudaError_enum") : text.index("} CUresult;")]
    entries = re.findall(r"/\*\*(.*?)\*/\s*CUDA_(?:ERROR_)?(\w+)\s*=\s*(\d+)", codes, re.DOTALL)
    assert len(entries) == len(re.findall(r"^\s*CUDA_\w+\s*=", codes, re.MULTILINE))
    return {
        name: (int(number), " ".join(comment.replace("*", " ").split()))
        for comment, name, number in entries
    }


def our_codes() -> dict[str, int]:
    enum = re.findall(r"enum class Code : int \{(.*?)\};", text_of(f"{DRIVER_API}.h"), re.DOTALL)[0]
    return {name: int(number) for name, number in re.findall(r"(k\w+) = (\d+),", enum)}


def sticky_codes() -> set[int]:
    body = re.findall(r"bool is_sticky\(.*?^\}", text_of(f"{DRIVER_API}.cc"), re.DOTALL | re.M)[0]
    return {our_codes()[name] for name in re.findall(r"case Code::(k\w+):", body)}


def test_a_process_ends_after_the_codes_of_which_the_header_says_so() -> None:
    codes = headers_codes()
    wanted = {n for name, (n, comment) in codes.items() if END.search(comment) or name in SILENT}
    assert {719, 226, 911} <= wanted, "the header's comments read otherwise now"
    assert sticky_codes() == wanted


def test_the_fake_driver_keeps_the_same_codes() -> None:
    kept = re.findall(r"\{Code::(k\w+),[^{}]*true\}", text_of("tests/fake_cuda/codes.cc"))
    assert {our_codes()[name] for name in kept} == sticky_codes()
