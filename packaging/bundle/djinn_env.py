#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""djinn-env [PROGRAM [ARGUMENTS]]: runs a program where it finds what djinnd needs.

That is the PyTorch of the Python that runs this script, and the programs and the Python package of
the folder that the script lies in. Without a program, prints the shell's exports for the same:
eval "$(djinn-env)".
"""

import importlib.metadata
import importlib.util
import os
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
NEEDED = "libtorch_cpu.so", "libc10.so", "libgomp.so.1"  # of djinn-worker


class Unusable(Exception):
    """Why nothing can be run, and what to do."""


def made_for() -> dict[str, str]:
    """What MANIFEST's head says: a comment `# NAME VALUE` each."""
    manifest = HERE / "MANIFEST"
    lines = manifest.read_text().splitlines() if manifest.is_file() else []
    words = [line.split() for line in lines if line.startswith("# ")]
    facts = {line[1]: line[2] for line in words if len(line) == 3}
    if not {"torch", "python"} <= facts.keys():
        raise Unusable(f"{HERE} is no whole bundle: {manifest} is missing or cut. Unpack it anew")
    return facts


def torch_folder(wanted: str) -> Path:
    """Where `import torch` would find it. It is not imported: that takes seconds."""
    advice = (
        f"Install it for this Python, {sys.executable} -m pip install torch=={wanted}, "
        f"or run this script by a Python that has it: PYTHON {HERE / 'bin/djinn-env'} PROGRAM"
    )
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Unusable(f"djinnd needs PyTorch {wanted}, and {sys.executable} has none. {advice}")
    found = importlib.metadata.version("torch")
    if found.split("+")[0] != wanted:  # after a +: for which devices it was built
        raise Unusable(f"djinnd needs PyTorch {wanted}, and {sys.executable} has {found}. {advice}")
    libraries = Path(spec.origin).parent / "lib"
    if absent := [name for name in NEEDED if not (libraries / name).exists()]:
        raise Unusable(
            f"{libraries} has no {', '.join(absent)}: not a wheel of PyTorch's. {advice}"
        )
    return libraries


def nvidia_folders() -> list[Path]:
    """Those of NVIDIA's wheels, from which PyTorch for CUDA takes libraries."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return [folder for place in places or () for folder in sorted(Path(place).glob("*/lib"))]


def additions() -> dict[str, list[Path]]:
    """What comes first in each variable."""
    facts = made_for()
    libraries = [torch_folder(facts["torch"]), *nvidia_folders()]
    added = {"PATH": [HERE / "bin"], "LD_LIBRARY_PATH": libraries}
    if facts["python"] == f"{sys.version_info.major}.{sys.version_info.minor}":
        added["PYTHONPATH"] = [HERE / "python"]
    return added


def joined(name: str, folders: list[Path]) -> str:
    present = os.environ.get(name, "").split(":")
    added = [str(folder) for folder in folders]
    return ":".join(added + [one for one in present if one and one not in added])


def main() -> None:
    values = {name: joined(name, folders) for name, folders in additions().items()}
    if len(sys.argv) == 1:
        for name, value in values.items():
            print(f"export {name}={shlex.quote(value)}")
        if "PYTHONPATH" not in values:
            print("djinn-env: the djinn package is for another Python", file=sys.stderr)
        return
    os.environ.update(values)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        raise Unusable(f"{sys.argv[1]}: {error.strerror}") from None


if __name__ == "__main__":
    try:
        main()
    except Unusable as why:
        sys.exit(f"djinn-env: {why}")
