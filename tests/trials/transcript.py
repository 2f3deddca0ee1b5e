# SPDX-License-Identifier: Apache-2.0
"""Sessions of a shell as somebody typed them, played again.

A line that begins with `$ ` is typed, and what stands below it up to an empty line must be shown:
blanks count as one, `...` is any text in a line, a line of `...` any lines, and a last line `[2]`
is the exit status, which is 0 where none is told. Lines that begin with `# ` say why."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_S = 120.0
MARK = "\x01"


@dataclass
class Step:
    typed: str
    shown: list[str] = field(default_factory=list)
    code: int = 0


def steps_of(session: Path) -> list[Step]:
    steps: list[Step] = []
    for line in session.read_text().splitlines():
        if line.startswith("$ "):
            steps.append(Step(line.removeprefix("$ ")))
        elif status := re.fullmatch(r"\[(\d+)\]", line):
            steps[-1].code = int(status[1])
        elif line and not line.startswith("# "):
            steps[-1].shown.append(line)
    return steps


def squeezed(lines: list[str]) -> str:
    return "".join(" ".join(line.split()) + "\n" for line in lines if line.strip())


def pattern_of(lines: list[str]) -> str:
    """Of what is squeezed."""
    any_text = re.escape("...")
    parts = [
        re.escape(line).replace(any_text, ".*?") + "\n" for line in squeezed(lines).splitlines()
    ]
    return "".join("(?:.*\n)*?" if part == ".*?\n" else part for part in parts)


def play(session: Path, directory: Path, environment: dict[str, str]) -> None:
    """In one bash; fails with the first line that was not answered as it should be."""
    steps = steps_of(session)
    assert steps, session
    script = "exec 2>&1\n" + "".join(
        f"{step.typed}\nprintf '\\n{MARK}%d\\n' $?\n" for step in steps
    )
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script],
        **{"cwd": directory, "env": environment, "timeout": LIMIT_S, "text": True},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    answers = re.findall(rf"(.*?)\n{MARK}(\d+)\n", done.stdout, re.DOTALL)
    assert len(answers) == len(steps), done.stdout
    for step, (shown, code) in zip(steps, answers, strict=True):
        found = squeezed(shown.splitlines())
        told = f"$ {step.typed}\n{found}[{code}]\nwas to show\n{squeezed(step.shown)}[{step.code}]"
        assert int(code) == step.code and re.fullmatch(pattern_of(step.shown), found), told
