"""Requests as the cache sees them: what each has found, and when its pages were of use."""

from collections.abc import Sequence

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.level import DeviceLevel
from trunkline.agent.cache.migration import Migration
from trunkline.agent.cache.visits import Visits


class Usage:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, visits: Visits, device: DeviceLevel, migration: Migration | None) -> None:
        self._visits = visits
        self._device = device
        self._migration = migration

    def begin(self, chain: Chain) -> None:
        """A request for the chain has come: what was found of it is of use, and stays while others can go."""
        found = chain.entries + chain.below
        chain.visit = self._visits.begin(chain.keys, len(found))
        if chain.visit is None:
            return
        chain.used = chain.visit.began
        if found:
            self._visits.protected.wait(chain.keys[: len(found)])
            self._use(found, chain.visit.trunk)

    def leave(self, chain: Chain) -> None:
        """The request ends before its turn has come."""
        if chain.visit is not None:
            self._visits.protected.waited(chain.keys[: chain.visit.found])
            chain.visit, chain.used = None, 0

    def end(self, chain: Chain, reply_tokens: int) -> None:
        """The request is done, and holds its pages still."""
        if chain.visit is not None:
            found = chain.visit.found
            self._use(chain.entries[:found], chain.visit.trunk)
            self._use(chain.entries[found:], self._visits.end(chain.visit, chain.keys, reply_tokens))
            self.leave(chain)

    def now(self, entries: Sequence[Entry]) -> int:
        """These were of use, to somebody of whom nothing is known but that: the number of the visit."""
        visit = self._visits.blank()
        self._use(entries, visit)
        return visit

    def _use(self, entries: Sequence[Entry], visit: int) -> None:
        """The visit has used these, which somebody holds, or which are in lower tiers, or before the window."""
        for entry in entries:
            if entry.used < visit:
                entry.used = visit
        if not self._device.closed:
            self._device.touched(entries)
        if self._migration is not None:
            self._migration.touched(entries)
