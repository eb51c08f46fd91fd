"""Keeps room in a tier: what would go next is copied to the tier below, and then let go."""

import math
from collections.abc import Callable, Container, Iterable

from trunkline.agent.cache.admission import reaches
from trunkline.agent.cache.catalog import Catalog, Reason
from trunkline.agent.cache.entry import Entry, Member
from trunkline.agent.cache.route import Route
from trunkline.shared.names import PAGE_TOKENS

RETRY_S = 0.1
"""After the tier below had no room."""


class Offload:
    """Above the mark, as far as the lane takes it. Used by one thread at a time: the engine, or its keeper.

    A page is copied after its parent, so that the lower tier is prefix-closed too: what is copied with a leaf is the
    part of its path that is not there yet, also where others still use it. Where the upper tier has not all of that
    path, as may be with a sliding window, or the lower one has fewer pages than it, the page is let go when its room is
    needed.
    """

    def __init__(self, catalog: Catalog, route: Route, mark: float, burst: int, clock: Callable[[], float]) -> None:
        """`mark`: the share of the upper tier's pages beyond which it gives some to the lower one. Where the rest is
        less than the `burst` of pages that are taken at once, that much is kept free, up to a third."""
        self._catalog = catalog
        self._route = route
        total = route.source.pool.total
        self.room = max(math.ceil(total * (1.0 - mark)), min(burst, total // 3))
        """Pages of the upper tier that are kept free."""
        self._clock = clock
        self._retry_at = 0.0
        self.least = 0.0
        """Pages that a segment must have to be worth its bytes below; see `admission.py`."""
        self.urgent = 0
        """Pages that were copied while somebody waited for their room, ever."""

    def turn(self) -> None:
        """Keeps room. Never waits."""
        self.make_room(self.room)

    @property
    def moving(self) -> bool:
        return self._route.lane.moves > 0

    def may_evict(self, entry: Entry) -> bool:
        """Whether the upper tier may let the entry go for one that can wait: it is below too, or does not get there."""
        if self._route.target.copy_of(entry) is not None or self._too_deep(entry):
            return True
        return not self._route.source.closed and not self.path(entry)

    def make_room(self, count: int) -> None:
        """For so many pages in the upper tier, now or soon: lets go what has its copy below, and sends what has none.
        Never waits."""
        upper, lower = self._route.source, self._route.target
        short = count - upper.pool.free - upper.pool.in_flight
        if short <= 0 or self.moving or self._clock() < self._retry_at:
            return
        sending: list[Entry] = []
        for member in upper.following(short, fetched=False):  # that would come back, and go again
            entry, may_go = upper.entry_of(member), upper.may_go(member)
            if may_go and lower.copy_of(entry) is not None:
                self._catalog.remove(upper, member, Reason.COPIED)
            elif may_go and not self._worth(member):
                self._catalog.remove(upper, member, Reason.SHORT)
            else:
                sending.append(entry)
        sending = self._missing(sending)
        if sending and not self._route.send(sending, fetched=False):
            self._retry_at = self._clock() + RETRY_S

    def make_way(self, count: int) -> None:
        """For so many pages that come back: in the background while the lower tier has room for what must go, else at
        once."""
        self.make_room(count)
        if not self.moving:
            self.save(count - self._route.source.pool.free)

    def may_make_way(self, entry: Entry) -> bool:
        """Whether the upper tier may let the entry go for one that comes back."""
        return not self.moving or self.may_evict(entry)

    def save(self, count: int) -> None:
        """The next `count` pages are about to go: copies those that are in the upper tier alone, and waits for it.
        Rare, and better than to compute them again: when more is taken at once than the mark keeps free."""
        upper = self._route.source
        following = upper.following(count)
        missing = self._missing(upper.entry_of(member) for member in following if self._worth(member))
        self.urgent += len(missing)
        self._route.carry(missing)

    def bring(self, entry: Entry) -> bool:
        """The entry is about to be needed in the lower tier, so that something can hang on it there: copies what is
        missing of its path. Does not wait. False: that cannot be done."""
        missing = self.path(entry)
        if not missing and entry not in self._route.target.incoming:
            return False
        return self._route.send(missing) > 0 or self.moving

    def _worth(self, member: Member) -> bool:
        """Whether its segment is worth a copy. Where pages stand alone, a segment is not what hangs together here."""
        return not self._route.source.closed or reaches(member, self.least)

    def _missing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Of the entries and their paths what the lower tier lacks, parents first."""
        missing: dict[Entry, None] = {}
        for entry in entries:
            missing.update(dict.fromkeys(self.path(entry, missing)))
        return list(missing)

    def path(self, entry: Entry, chosen: Container[Entry] = ()) -> list[Entry]:
        """The part of the entry's path that the lower tier lacks and is not `chosen` yet, parents first. None of it if
        it cannot get there."""
        upper, lower = self._route.source, self._route.target
        if self._too_deep(entry):
            return []
        path: list[Entry] = []
        step: Entry | None = entry
        while step is not None and step not in chosen and step not in lower.incoming and lower.copy_of(step) is None:
            if upper.copy_of(step) is None:
                return [] if lower.closed else path[::-1]
            path.append(step)
            step = step.parent
        return path[::-1]

    def _too_deep(self, entry: Entry) -> bool:
        """Whether its path is longer than the lower tier, which could only push out the beginning for the end."""
        lower = self._route.target
        return lower.closed and entry.depth > lower.pool.total * PAGE_TOKENS
