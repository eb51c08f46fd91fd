"""Runs of the locust profile, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunkline.shared.errors import TrunklineError
from trunkline.shared.processes import die_with_parent

LOCUSTFILE = Path(__file__).parent.parent / "locustfile.py"
_SLACK_S = 60.0
"""Of a run beyond its time and the wait for its last answers: locust's start and its report."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Options of the profile, without dashes in front: {"rate": 3.0, "no-reuse": True}. True stands for a flag."""

    url: str
    seconds: float
    stop_s: float
    options: Mapping[str, object]

    def command(self, reports: Path) -> list[str]:
        line = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
        line += ["--host", self.url, "--reports", str(reports), "--loglevel", "WARNING"]
        line += ["--run-time", f"{self.seconds:.0f}s", "--stop-timeout", f"{self.stop_s:.0f}"]
        for name, value in self.options.items():
            line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return line

    def run(self, reports: Path) -> dict[str, Any]:
        """The summary of its report. Raises TrunklineError if there is none; failed requests are in the summary."""
        before = set(reports.glob("*/summary.json"))
        limit = self.seconds + self.stop_s + _SLACK_S
        try:
            done = subprocess.run(
                self.command(reports), capture_output=True, text=True, timeout=limit, preexec_fn=die_with_parent
            )
        except subprocess.TimeoutExpired:
            raise TrunklineError(f"the load on {self.url} did not end within {limit:.0f} s") from None
        new = set(reports.glob("*/summary.json")) - before
        if not new:
            said = done.stderr.strip().splitlines() or ["no output"]
            raise TrunklineError(f"the load on {self.url} left no report: {said[-1]}")
        summary: dict[str, Any] = json.loads(new.pop().read_text())
        return summary
