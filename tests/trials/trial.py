# SPDX-License-Identifier: Apache-2.0
"""Scripts of engineer/, run as their user does: plain, and with djinn. How they ended, and what
they said."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
from private_daemon import THREADS

HERE = Path(__file__).parent
LIMIT_S = 240.0
NOWHERE = "unix:/nonexistent/djinnd.sock"


@dataclass(frozen=True)
class Told:
    ended: str | None  # None: well
    out: str
    err: str
    report: dict[str, Any]  # of with_djinn.py

    def lines(self) -> list[str]:
        assert self.ended is None, f"{self.ended}\n{self.err}"
        return self.out.splitlines()

    def error(self) -> str:
        """What its last lines said to who sat before it."""
        assert self.ended is not None, self.out
        assert "Traceback" in self.err, self.err
        return self.err.strip()


class Nursery:
    """Where scripts are started; in the full tier each from nothing."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.count = 0
        self.anew = os.environ.get("DJINN_TEST_TIER") == "full"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            env={
                **os.environ,
                **children.ENVIRONMENT,
                **{"OMP_NUM_THREADS": str(THREADS), "PYTHONUTF8": "1"},
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: Path, host: str = NOWHERE, djinn: bool = False, **more: str
    ) -> Told:
        """djinn: as if the script had enabled it. more: variables of the environment."""
        self.count += 1
        directory = self.scratch / f"{self.count}-{Path(script).stem}"
        directory.mkdir()
        out, log, report = (directory / name for name in (".out", ".log", ".report.json"))
        words = [str(HERE / "engineer" / script), *map(str, arguments)]
        if djinn:
            words = [str(HERE / "with_djinn.py"), str(report), *words]
        ended = self._ask(
            {
                **{"words": words, "anew": self.anew, "limit_s": LIMIT_S},
                **{"directory": str(directory), "out": str(out), "log": str(log)},
                "environment": {"DJINN_HOST": host, **more},
            }
        )
        said = json.loads(report.read_text()) if report.exists() else {}
        return Told(ended, out.read_text(), log.read_text(), said)

    def _ask(self, asked: dict[str, Any]) -> str | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: str | None = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate()
