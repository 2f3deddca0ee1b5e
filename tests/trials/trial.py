# SPDX-License-Identifier: Apache-2.0
"""Scripts of engineer/, run as their user does: plain, and with djinn. How they ended, and what
they said."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
from fork_server import ForkServer
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
        environment = {"OMP_NUM_THREADS": str(THREADS), "PYTHONUTF8": "1"}
        self.server = ForkServer(
            [str(HERE / "nursery.py")], {**children.ENVIRONMENT, **environment}, LIMIT_S
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
        ended = self.server.ask(
            {
                **{"words": words, "anew": self.anew, "limit_s": LIMIT_S},
                **{"directory": str(directory), "out": str(out), "log": str(log)},
                "environment": {"DJINN_HOST": host, **more},
            }
        )
        written = [one.read_text() if one.exists() else "" for one in (out, log)]
        said = json.loads(report.read_text()) if report.exists() else {}
        return Told(ended, *written, said)

    def close(self) -> None:
        self.server.close()
