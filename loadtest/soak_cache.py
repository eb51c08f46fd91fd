"""Soak of a node's cache: `trunkline bench soak-cache --minutes 30`.

Mixed traffic (`churn.py`) at full tiers, for as long as asked. It passes if no page was ever wrong, every page is
accounted for at the end, everything on the disk is as it was written, and resident memory has stayed flat.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from trunkline.agent.cache.disk.tools import verify
from trunkline.agent.cache.visits import REMEMBERED
from trunkline.loadtest.bench.row import Row, row
from trunkline.loadtest.churn import Churn, Sizes, Tally
from trunkline.shared.wire import TierLoad

WARM_UP = 0.3
"""Share of the time after which memory is compared: until then tiers fill, and the cache gets to know its traffic."""
SAMPLES = 300
MOST_GROWTH = 1.02
FULL = {"device": 0.85, "host": 0.80, "disk": 0.97}
"""What the cache leaves in a tier: of device and host it keeps 10 % and 15 % free for what comes next."""


def run(minutes: float, folder: Path | None = None, seed: int = 0, sizes: Sizes | None = None) -> list[Row]:
    """One row per figure. `folder`: on the disk to use; by default where temporary files go. Raises RuntimeError if
    pages are not accounted for."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="trunkline-soak-") as name:
        return Soak(Path(name), 60 * minutes, sizes or Sizes(), seed).run()


class Soak:
    """Runs for so many seconds in a folder of its own, and says what it saw."""

    def __init__(self, folder: Path, seconds: float, sizes: Sizes, seed: int = 0) -> None:
        self._folder = folder
        self._seconds = seconds
        self._churn = Churn(folder, sizes, seed)
        self._memory: list[int] = []
        """Resident bytes, after warming up."""
        self._tiers: list[tuple[TierLoad, ...]] = []
        self._done: list[tuple[int, float]] = []
        """Requests so far, and CPU seconds that they took: other processes of the machine do not move these."""

    def run(self) -> list[Row]:
        """One row per figure. Raises RuntimeError if pages are not accounted for."""
        churn, cache = self._churn, self._churn.cache
        churn.remember(2 * REMEMBERED)  # so that everything remembered has been replaced once
        began = time.monotonic()
        warm, pause = began + WARM_UP * self._seconds, self._seconds * (1 - WARM_UP) / SAMPLES
        sample_at = warm
        while (now := time.monotonic()) < began + self._seconds:
            churn.turn()
            if now >= sample_at:
                sample_at = now + pause
                self._memory.append(_resident())
                self._tiers.append(cache.tiers())
                self._done.append((churn.tally.requests, time.process_time()))
                cache.check()
        churn.settle()
        while cache.moving:
            time.sleep(0.001)
            cache.turn()
        cache.check()
        held = sum(tier.resident - tier.cached + tier.in_flight for tier in cache.tiers())
        counters, false_hits = cache.counters(), cache.false_hits
        bad = sum(route.bad for route in counters.routes.values()) + counters.dropped_pages + counters.disk_failures
        closed = churn.close()
        fine, damaged = verify(self._folder)
        tally = churn.tally
        return [
            _nothing("pages with wrong bytes", tally.wrong),
            _nothing("false hits", false_hits),
            _nothing("pages that did not arrive or were dropped, disk failures", bad),
            _nothing("pages held by nobody at the end", held),
            _nothing("pages that stay for a request that is gone", counters.protected_pages - counters.core_pages),
            _nothing("tiers still at work 10 s after the end", int(not closed)),
            _nothing(f"damaged pages on the disk, of {fine + len(damaged)}", len(damaged)),
            self._growth(),
            self._speed(),
            *self._occupancy(),
            *_volume(tally, self._seconds),
            *(
                row(f"pages from {source} to {target}", route.pages, None, None, "", None)
                for (source, target), route in counters.routes.items()
            ),
            row("fetches, of these late", counters.fetches, counters.late_fetches, None, "", None),
        ]

    def _growth(self) -> Row:
        third = max(1, len(self._memory) // 3)
        first, last = median(self._memory[:third]) / 2**20, median(self._memory[-third:]) / 2**20
        title = "resident MiB: last third, and first third after warming up"
        return row(title, last, first, last / first, f"<= {MOST_GROWTH}", last / first <= MOST_GROWTH)

    def _speed(self) -> Row:
        """No reach: what a request does depends on what the cache has learned meanwhile."""
        third = len(self._done) // 3
        pairs = ((self._done[-1 - third], self._done[-1]), (self._done[0], self._done[third]))
        last, first = ((after[0] - before[0]) / (after[1] - before[1]) for before, after in pairs)
        title = "requests per CPU second: last third, and first third after warming up"
        return row(title, last, first, last / first, "", None)

    def _occupancy(self) -> list[Row]:
        rows = []
        for tiers in zip(*self._tiers, strict=True):
            name = tiers[0].tier.name.lower()
            share = median(1 - tier.free / tier.total for tier in tiers)
            rows.append(row(f"{name} in use", share, None, None, f">= {FULL[name]}", share >= FULL[name]))
        return rows


def _nothing(figure: str, count: int) -> Row:
    return row(figure, count, None, None, "0", count == 0)


def _volume(tally: Tally, seconds: float) -> list[Row]:
    return [
        row("requests, per second", tally.requests, tally.requests / seconds, None, "", None),
        row("of these cancelled, preempted", tally.cancelled, tally.preempted, None, "", None),
        row("pages computed, reused", tally.computed, tally.reused, None, "", None),
    ]


def _resident() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))
