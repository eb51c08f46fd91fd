"""The tiers of a node's cache: memory and disk beside memcpy and fio, restarts, sessions, and the engine meanwhile.

The disk figures need some GiB at the given directory and, for the comparison, `fio`. Compare within one run: targets
take turns.
"""

import tempfile
from pathlib import Path

from trunkline.loadtest.bench.cache.copies import disk, memory
from trunkline.loadtest.bench.cache.flow import flow
from trunkline.loadtest.bench.cache.restart import restart
from trunkline.loadtest.bench.cache.sessions import sessions
from trunkline.loadtest.bench.row import Row

PAGE_BYTES = 737_280
"""Of the default model in float32."""


def run(rounds: int = 3, folder: Path | None = None) -> list[Row]:
    """One row per figure. `folder`: on the disk to measure; by default where temporary files go."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="trunkline-bench-") as name:
        there = Path(name)
        return [
            *memory(rounds, PAGE_BYTES),
            *disk(there, rounds),
            restart(there / "restart", rounds),
            sessions(there / "sessions", PAGE_BYTES),
            *flow(there / "flow", rounds),
        ]
