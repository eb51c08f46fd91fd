"""The disk tier as the engine thread sees it: its pages, its ways to and from the host, and what if it fails."""

import logging
import time
from collections.abc import Callable

from trunkline.agent.cache.catalog import Catalog, Reason
from trunkline.agent.cache.disk_level import DiskLevel
from trunkline.agent.cache.entry import Copy, Entry
from trunkline.agent.cache.expiry import Expiry
from trunkline.agent.cache.lane import Move
from trunkline.agent.cache.level import LowerLevel
from trunkline.agent.cache.lower import DiskBacking, LowerTiers, Store
from trunkline.agent.cache.offload import Offload
from trunkline.agent.cache.restore import restore
from trunkline.agent.cache.route import Route, Speed
from trunkline.agent.cache.standin import StandIn
from trunkline.agent.cache.visits import Visits

HOST_MARK = 0.85
"""Of the host's pages; beyond, the next to go are written to the disk."""
RETRY_S = 5.0
"""How often a disk that has failed is tried again."""
log = logging.getLogger(__name__)


class DiskTier:
    """Used by one thread at a time: the engine, or its keeper.

    On a failing disk it goes on in memory (`StandIn`) and takes the disk back when it works again; what lay there is
    found again then, as after a restart.
    """

    def __init__(
        self,
        catalog: Catalog,
        host: LowerLevel,
        lower: LowerTiers,
        disk: DiskBacking,
        visits: Visits,
    ) -> None:
        self.failed = False
        """Whether the stand-in is in its place."""
        self.failures = 0
        self.dropped = 0
        """Pages that were not what they should be, or could not be read, and what hung on them."""
        self._catalog = catalog
        self._host = host
        self._lower = lower
        self._disk = disk
        self._visits = visits
        self._clock = lower.clock
        self._wake: Callable[[], None] = lambda: None
        self._bad: set[Entry] = set()
        self._retry_at = 0.0
        ttl_s = disk.settings.ttl_s
        self._expiry = Expiry(catalog, visits, ttl_s, lower.clock) if ttl_s is not None else None
        self._use(disk.store)
        self._restore()

    @property
    def routes(self) -> tuple[Route, Route]:
        return self.up, self.down

    def on_landed(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        for route in self.routes:
            route.lane.on_landed = wake
        wake()  # to go on restoring

    def usable(self, entry: Entry) -> bool:
        """Whether the entry's copy here may be read."""
        return entry.disk is not None and entry not in self._bad

    def may_evict(self, entry: Entry) -> bool:
        """Whether the host may let the entry go: it is here too, or does not get here."""
        return self.failed or self.offload.may_evict(entry)

    def turn(self) -> None:
        """Flips what has landed, keeps room in the host. Never waits."""
        error = self._land()
        if error is not None and not self.failed:
            self._fail(error)
        elif self.failed:
            self._recover()
        if self._bad:
            self._drop_bad()
        self._go_on_restoring()
        if self._expiry is not None:
            self._expiry.turn(self.level)
        self.offload.turn()

    def close(self, timeout: float) -> bool:
        """Writes down what was let go, and ends. False: something is still being copied."""
        lanes = [route.lane for route in self.routes]
        if self.failed:
            lanes += [self._fresh, *(route.lane for route in self._old)]
        elif self.level.freed:
            self.down.lane.submit(Move([], [], [], removed=self.level.freed))
        for lane in lanes:
            lane.end()
        late = time.monotonic() + timeout
        ended = [lane.close(max(0.0, late - time.monotonic())) for lane in lanes]
        if all(ended):
            self._disk.close()
        return all(ended)

    def _use(self, store: Store) -> None:
        catalog, host, lower = self._catalog, self._host, self._lower
        self.level = DiskLevel(store.pages, self._visits)
        lane_up = lower.open_lane("disk-to-host", store.load)
        lane_down = lower.open_lane("host-to-disk", store.save)
        self.up = Route(catalog, self.level, host, lane_up, lower.batch, Speed(self._clock))
        self.down = Route(catalog, host, self.level, lane_down, lower.batch, Speed(self._clock))
        self.up.may_evict = self.may_evict
        self.offload = Offload(self._catalog, self.down, HOST_MARK, lower.burst, self._clock)
        self.on_landed(self._wake)

    def _restore(self) -> None:
        began = time.monotonic()
        self._restoring = restore(self._catalog, self.level, self._visits, self._disk.store.take_found())
        if self.level.idle:
            log.info("disk cache: %d pages found again, indexed in %.3f s", self.level.idle, time.monotonic() - began)

    def _go_on_restoring(self) -> None:
        """The next text keys of what lay on the disk, and another turn soon if there are more."""
        for _ in self._restoring:
            self._wake()
            return

    def _land(self) -> OSError | None:
        error = None
        while move := self.up.land():
            error = move.error or error
            self._bad.update(move.entries[position] for position in move.bad)
        while move := self.down.land():
            error = move.error or error
        return error

    def _fail(self, error: OSError) -> None:
        """The disk is left alone, with what lies there, and memory takes its place."""
        self.failed = True
        self.failures += 1
        log.critical(
            "disk cache: %s failed (%s); going on in memory, %.0f s until it is tried again",
            self._disk.folder,
            error,
            RETRY_S,
        )
        self._forget()
        self._old = self.routes
        for route in self._old:
            route.retire()
        self._retry_at = self._clock() + RETRY_S
        self._use(StandIn(self._lower.host, self.level.pool.total))
        self._fresh = self._lower.open_lane("disk-recovery", self._disk.reopen)

    def _recover(self) -> None:
        """Tries the disk again when it is time to, and takes it back if it works."""
        for route in self._old:
            while route.land():
                pass
        if (move := self._fresh.landed()) is not None:
            if move.error is None:
                self._take_back()
                return
            log.warning("disk cache: %s still fails: %s", self._disk.folder, move.error)
            self._retry_at = self._clock() + RETRY_S
        elif not self._fresh.moves and self._clock() >= self._retry_at and not any(r.lane.moves for r in self._old):
            self._fresh.submit(Move([], [], []))

    def _take_back(self) -> None:
        if any(route.lane.moves for route in self.routes):
            self._fresh.submit(Move([], [], []))  # not before the stand-in is at rest
            return
        self._forget()
        for lane in (self._fresh, *(route.lane for route in (*self._old, *self.routes))):
            lane.end()
        self._use(self._disk.store)
        self.failed = False
        self._restore()
        log.warning("disk cache: %s works again", self._disk.folder)

    def _forget(self) -> None:
        """Nothing is here any more."""
        entries = sorted((copy.entry for copy in self.level), key=lambda entry: -entry.depth)
        self.level.clear()
        self._bad.clear()
        for entry in entries:
            self._catalog.changed(entry)

    def _drop_bad(self) -> None:
        """Pages that cannot be used, and what hangs on them, as far as nobody is reading it."""
        fine: dict[Copy, bool] = {}

        def is_fine(copy: Copy) -> bool:
            path = []
            step: Copy | None = copy
            while step is not None and step not in fine:
                path.append(step)
                step = step.base
            verdict = True if step is None else fine[step]
            for one in reversed(path):
                verdict = fine[one] = verdict and one.entry not in self._bad
            return verdict

        doomed = sorted((copy for copy in self.level if not is_fine(copy)), key=lambda copy: -copy.entry.depth)
        for copy in doomed:
            if self.level.may_go(copy):
                self._bad.discard(copy.entry)
                self._catalog.remove(self.level, copy, Reason.DAMAGED)
                self.dropped += 1
        if not doomed:
            self._bad.clear()
