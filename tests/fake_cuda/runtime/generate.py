#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the functions that the fake runtime exports: those that PyTorch's libraries want of
CUDA's, as nm tells, each with the prototype that NVIDIA's headers give it. What a function does is
in the folder's .cc files, in namespace `effect`. One without does nothing if it is in SILENT, only
computes if computes() says so, and else ends the process that calls it. A function that has no
prototype ends the build: a new PyTorch is noticed here first.

    generate.py --torch DIR --include DIR --compiler CXX --out DIR SOURCE...
"""

import argparse
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13")
HEADERS = ("cuda_runtime_api.h", "cuda_profiler_api.h", "cublas_v2.h", "cublasLt.h")
# These are done by doing nothing.
SILENT = {
    "cudaDeviceEnablePeerAccess",
    "cudaFuncSetAttribute",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaProfilerStart",
    "cudaProfilerStop",
}
PROTOTYPE = re.compile(r"([\w*][\w\s*]*?[\s*])(\w+)\s*\(([^(){}]*)\)\s*$")


@dataclass
class Function:
    library: str
    name: str
    result: str
    parameters: list[tuple[str, str]]  # type and name

    def declared(self) -> str:
        return ", ".join(f"{kind} {name}" for kind, name in self.parameters)


def undefined(path: Path) -> list[str]:
    command = ["nm", "-D", "--undefined-only", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines()]


def wanted(torch: Path) -> dict[str, str]:
    """The library of each function."""
    files = [*torch.glob("lib/*.so"), *torch.parent.glob("nvidia/cudnn/lib/libcudnn*.so.9")]
    found = {}
    for file in files:
        for symbol in undefined(file):
            name, _, version = symbol.replace("@@", "@").partition("@")
            if version in LIBRARIES:
                found[name] = version
    return found


def parameter(text: str, index: int) -> tuple[str, str]:
    """Its type and its name; an array is a pointer."""
    split = re.fullmatch(r"(.*[\s*])(\w+)\s*(\[\d*\])?", " ".join(text.split()))
    if not split:
        return text.strip(), f"a{index}"
    return split[1].strip() + ("*" if split[3] else ""), split[2]


def prototypes(headers: str) -> dict[str, re.Match[str]]:
    found = [PROTOTYPE.search(statement) for statement in headers.split(";")]
    return {one[2]: one for one in found if one}


def function(library: str, name: str, known: dict[str, re.Match[str]]) -> Function | None:
    found = known.get(name)
    if not found:
        return None
    texts = [text for text in found[3].split(",") if text.strip() not in ("", "void")]
    parameters = [parameter(text, i) for i, text in enumerate(texts)]
    result = re.sub(r"\b(extern|static|inline)\b", "", found[1]).strip()
    return Function(library, name, result, parameters)


def computes(function: Function) -> bool:
    """cuBLAS' functions record what is to be computed, unless somebody waits for their answer."""
    takes_handle = (
        function.parameters[0][0] == "cublasHandle_t" or function.name == "cublasLtMatmul"
    )
    is_question = re.search("Get|Query|Create|Check", function.name)
    return function.result == "cublasStatus_t" and takes_handle and not is_question


def body(function: Function, effects: set[str]) -> str:
    name, given = function.name, ", ".join(name for _, name in function.parameters)
    if name in effects:
        work = f"return effect::{name}({given});"
    elif name in SILENT:
        work = f"return {function.result}{{}};"
    elif computes(function):
        where = "stream" if "stream" in given.split(", ") else function.parameters[0][1]
        work = f"return djinn::fake_runtime::compute({where});"
    else:
        unused = "".join(f"  (void){name};\n" for _, name in function.parameters)
        return f'{unused}  djinn::fake_runtime::not_faked("{name}");\n'
    shown = "".join(f'  call.show("{name}", {name});\n' for _, name in function.parameters)
    return (
        f'  djinn::fake_runtime::Call call("{name}");\n{shown}'
        f"  return call.run([&]() -> {function.result} {{ {work} }});\n"
    )


def source(functions: list[Function], effects: set[str]) -> str:
    text = '#include "effects.h"\n\nnamespace effect = djinn::fake_runtime::effect;\n\n'
    for one in functions:
        text += (
            f'extern "C" {one.result} {one.name}({one.declared()}) {{\n{body(one, effects)}}}\n\n'
        )
    return text


def exports(library: str) -> str:
    """A version script: what the real one exports, and of ours what the other two call."""
    ours = ' extern "C++" { djinn::fake_runtime::*; };' if library == LIBRARIES[0] else ""
    names = "__cuda*; cuda*; djinn_*;" if library == LIBRARIES[0] else "cublas*;"
    return f"{library} {{ global: {names}{ours} local: *; }};\n"


def write(path: Path, text: str) -> None:
    """Not touched where it is the same, so that nothing is compiled anew."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--include", type=Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("sources", type=Path, nargs="+")
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    preprocess = [options.compiler, "-E", "-P", "-x", "c", f"-I{options.include}", "-"]
    text = "".join(f"#include <{header}>\n" for header in HEADERS)
    preprocessed = subprocess.run(
        preprocess, input=text, capture_output=True, text=True, check=True
    )
    headers = prototypes(preprocessed.stdout)

    ours = "\n".join(path.read_text() for path in options.sources)
    whole = set(re.findall(r'^extern "C"[^;({]*?\b(\w+)\([^;{]*\{', ours, re.MULTILINE))
    effects = set(re.findall(r"^\S.*?\b(cuda\w+|cublas\w+)\([^;{]*\{", ours, re.MULTILINE)) - whole
    functions = [
        (library, name, function(library, name, headers))
        for name, library in sorted(wanted(options.torch).items())
    ]
    strange = [
        f"{name} of {library}"
        for library, name, found in functions
        if found is None and name not in whole
    ]
    assert not strange, f"PyTorch wants what has no prototype, and nobody has faked: {strange}"
    known = [found for _, name, found in functions if found is not None and name not in whole]
    idle = (effects | SILENT) - {one.name for one in known}
    assert not idle, f"PyTorch does not want what is faked here: {sorted(idle)}"

    declared = "".join(
        f"{one.result} {one.name}({one.declared()});\n" for one in known if one.name in effects
    )
    write(
        options.out / "effects.h",
        '#pragma once\n\n#include "tests/fake_cuda/runtime/call.h"\n'
        f"\nnamespace djinn::fake_runtime::effect {{\n\n{declared}\n}}\n",
    )
    names = "".join(f'    "{name.removesuffix("_v2")}",\n' for _, name, _ in functions)
    write(
        options.out / "functions.h",
        "#pragma once\n\n#include <string_view>\n\nnamespace djinn::fake_runtime {\n\n"
        f"inline constexpr std::string_view kFunctions[] = {{\n{names}}};\n\n}}\n",
    )
    for library in LIBRARIES:
        of_library = [one for one in known if one.library == library]
        write(options.out / f"{library}.cc", source(of_library, effects))
        write(options.out / f"{library}.map", exports(library))


if __name__ == "__main__":
    main()
