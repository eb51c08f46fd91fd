"""What other nodes are being lent, until when, and who goes first when the room is wanted."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.level import Level

PEER_SHARE, TOTAL_SHARE = 0.5, 0.75
"""Of the pages in memory: what one peer may be lent at a time, and all of them. Generous, for leases can be broken."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """How much may be lent."""

    peer_pages: int
    """To one peer at a time; with them the bytes that can be in flight to it."""
    total_pages: int
    seconds: float = 30.0
    """A lease that nobody gave back ends by itself."""

    @classmethod
    def of(cls, cache: PageCache) -> "LeaseLimits":
        """Shares of its pages in the tiers that can be read."""
        pages = sum(level.pool.total for level in cache.readable)
        return cls(max(1, int(PEER_SHARE * pages)), max(1, int(TOTAL_SHARE * pages)))


@dataclass(eq=False, slots=True)
class Lease:
    """Pages that one reader may read where they lie."""

    number: int
    session: int
    pages: int
    until: float
    holds: list[tuple[Level[Any], int]]
    """The last page in each tier: those before it stay as long as it does."""
    ended: bool = field(default=False, init=False)


class Leases:
    """Used by one thread at a time: the engine, or its keeper.

    A lease ends when its reader gives it back, leaves, or its time is up; and when the node needs the room: then the
    oldest that is in the way is broken. Its reader is not told: it sees that a slot's generation has changed.
    """

    def __init__(
        self, levels: Iterable[Level[Any]], limits: LeaseLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.pages = 0
        """Lent now; a page counts once for each lease."""
        self.granted = self.broken = self.expired = 0
        """Leases, ever."""
        self._clock = clock
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        """By number, the oldest first."""
        self._lent: dict[int, int] = {}
        """Pages lent in each session that has a lease."""
        for level in levels:
            level.on_short = partial(self._break, level)

    def __len__(self) -> int:
        return len(self._leases)

    def room(self, session: int) -> int:
        """Pages that may be lent in the session now."""
        limits = self.limits
        return max(0, min(limits.peer_pages - self._lent.get(session, 0), limits.total_pages - self.pages))

    def grant(self, session: int, pages: int, holds: Sequence[tuple[Level[Any], int]], seconds: float) -> Lease:
        """Of at least one page, at most `room`; `holds`: the last page in each tier, which is a member there."""
        self.granted += 1
        until = self._clock() + min(seconds, self.limits.seconds)
        lease = Lease(self.granted, session, pages, until, list(holds))
        for level, page in lease.holds:
            level.lend(page)
        self._leases[lease.number] = lease
        self._lent[session] = self._lent.get(session, 0) + pages
        self.pages += pages
        return lease

    def release(self, session: int, number: int) -> None:
        """The reader is done with it. One that has ended, or that is another session's, is left alone."""
        lease = self._leases.get(number)
        if lease is not None and lease.session == session:
            self._end(lease)

    def leave(self, session: int) -> None:
        """The reader is gone."""
        for lease in [lease for lease in self._leases.values() if lease.session == session]:
            self._end(lease)

    def expire(self) -> None:
        """Ends those whose time is up."""
        now = self._clock()
        for lease in [lease for lease in self._leases.values() if lease.until < now]:
            log.warning("transfer: a lease of %d pages was not given back in time", lease.pages)
            self.expired += 1
            self._end(lease)

    def check(self) -> None:
        """Raises RuntimeError with the first thing that does not add up."""
        pages = sum(lease.pages for lease in self._leases.values())
        if pages != self.pages or pages != sum(self._lent.values()):
            raise RuntimeError(f"{pages} pages are lent, {self.pages} are counted")
        for lease in self._leases.values():
            if lease.ended:
                raise RuntimeError(f"lease {lease.number} has ended and is still there")
            for level, page in lease.holds:
                if not level.lent[page]:
                    raise RuntimeError(f"lease {lease.number} does not hold its {level.tier.name.lower()} page {page}")

    def _break(self, level: Level[Any]) -> bool:
        """The oldest lease that holds something there ends. False: none does."""
        for lease in self._leases.values():
            if any(held is level for held, _ in lease.holds):
                self.broken += 1
                if self.broken.bit_count() == 1:
                    log.warning("transfer: %d leases broken so far, for want of %s pages", self.broken, level.tier.name)
                self._end(lease)
                return True
        return False

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.number]
        lease.ended = True
        self.pages -= lease.pages
        self._lent[lease.session] -= lease.pages
        if not self._lent[lease.session]:
            del self._lent[lease.session]
        for level, page in lease.holds:
            level.take_back(page)
