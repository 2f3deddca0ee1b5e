# SPDX-License-Identifier: Apache-2.0
"""The log of the fake runtime (tests/fake_cuda/runtime), read: a line a call, and what it is of.

A section is the calls between two marks of the program that made them."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT_MAX = 512  # of all that is allocated; nothing asks for more
ADDRESS = re.compile(r"([dpv]\d+)\+(\d+)")
WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}
ALLOCATIONS = {"cudaMalloc", "cudaHostAlloc", "cudaMallocAsync"}
FREES = {"cudaFree", "cudaFreeHost", "cudaFreeAsync"}
DEVICE_TO_HOST = "2"
NO_PRODUCT = re.compile(r"Desc|Preference|Layout|Heuristic|Create|Destroy|Set|Get")


@dataclass(frozen=True)
class Line:
    function: str
    arguments: dict[str, str]

    @property
    def error(self) -> int:
        return int(self.arguments.get("error", 0))

    def is_launch(self) -> bool:
        return self.function.startswith("cudaLaunch")

    def is_product(self) -> bool:
        """Of matrices, or whatever else cuBLAS computes."""
        return self.function.startswith("cublas") and not NO_PRODUCT.search(self.function)

    def is_allocation(self) -> bool:
        return self.function in ALLOCATIONS

    def is_free(self) -> bool:
        return self.function in FREES

    def is_wait(self) -> bool:
        return self.function in WAITS

    def bytes_to_host(self) -> int:
        is_copy = self.function in ("cudaMemcpyAsync", "cudaMemcpy")
        back = is_copy and self.arguments["kind"] == DEVICE_TO_HOST
        return int(self.arguments["count"]) if back else 0


def line_of(text: str) -> Line:
    function, *pairs = text.split("\t")
    return Line(function, dict(pair.split("=", 1) for pair in pairs))


def sections(path: Path) -> dict[str, list[Line]]:
    """The calls after each mark, by its text; those before the first one are of no section."""
    found: dict[str, list[Line]] = {}
    for text in path.read_text().splitlines():
        line = line_of(text)
        if line.function == "mark":
            current = found.setdefault(line.arguments["text"], [])
        elif found:
            current.append(line)
    return found


REPLAYED = "replayed:"


def unfolded(lines: Iterable[Line]) -> list[Line]:
    """With what the launches of graphs replay in place of these launches."""
    return [
        Line(line.function.removeprefix(REPLAYED), line.arguments)
        for line in lines
        if line.function != "cudaGraphLaunch"
    ]


def without_captures(lines: Iterable[Line]) -> list[Line]:
    """Without the calls between a capture's beginning and its end: nothing of them is done then."""
    kept: list[Line] = []
    captures = False
    for line in lines:
        captures = captures or (line.function == "cudaStreamBeginCapture" and not line.error)
        if not captures:
            kept.append(line)
        captures = captures and line.function != "cudaStreamEndCapture"
    return kept


def launched(lines: Iterable[Line]) -> list[Line]:
    """The calls as they would be if nothing were captured."""
    return unfolded(without_captures(lines))


def count(lines: Iterable[Line], is_counted: Callable[[Line], bool]) -> int:
    return sum(map(is_counted, lines))


def alignment(address: str) -> int:
    """The greatest power of two that divides it, at most ALIGNMENT_MAX."""
    found = ADDRESS.fullmatch(address)
    assert found, f"{address} is no address of the device or of pinned memory"
    offset = int(found[2]) or ALIGNMENT_MAX
    return min(offset & -offset, ALIGNMENT_MAX)


def without_places(line: Line) -> Line:
    """The call with addresses replaced by how they are aligned, and handles by their settings."""

    def aligned(found: re.Match[str]) -> str:
        return f"aligned {alignment(found[0])}"

    values = {name: ADDRESS.sub(aligned, value) for name, value in line.arguments.items()}
    return Line(line.function, values)


STREAM = re.compile(r"(?<=\bon )\w+(?= math)")  # of a handle's


def on_any_stream(line: Line) -> Line:
    values = {name: STREAM.sub("any", value) for name, value in line.arguments.items()}
    return Line(line.function, {**values, **({"stream": "any"} if "stream" in values else {})})


def work(lines: Iterable[Line]) -> list[Line]:
    """What a GPU would have computed: launches and products, wherever their memory lay, on
    whatever stream."""
    done = [line for line in lines if line.is_launch() or line.is_product()]
    return [on_any_stream(without_places(line)) for line in done]
