"""The pages of one tier: which are whose, which are idle, and which may go."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.entry import GONE, Copy, Entry
from trunkline.agent.cache.eviction import EvictionOrder, M
from trunkline.agent.cache.visits import Visits
from trunkline.kernels.core import PagePool
from trunkline.shared.names import Tier
from trunkline.shared.wire import TierLoad

Generations = npt.NDArray[np.uint32]
"""[pages]: how often each was let go as a member's. While that stays the same, so does the page's content."""


class Level(ABC, Generic[M]):
    """Members of one tier with their pages. Used by one thread at a time: the engine, or its keeper.

    The level itself holds one reference to each member's page; a member is idle while it is the only one. Members are
    prefix-closed: one has its parent beside it, and leaves go first. So what a tier loses is never what another tier's
    pages hang on, and a tier that is left alone (after a restart) is complete in itself.

    Of a model with a sliding window, device and host are not `closed`: a member may be there without its parent, which
    nobody attends to any more who goes on after it. The parent's entry stays all the same, to verify it.
    """

    def __init__(
        self, tier: Tier, pages: int, visits: Visits, generations: Generations | None = None, *, closed: bool = True
    ) -> None:
        """`visits`: of all tiers. `generations`: the tier's own, of zeros.

        Raises ValueError for a number of pages that no pool can have.
        """
        self.tier = tier
        self.closed = closed
        self.pool = PagePool(pages)
        self.members: list[M | None] = [None] * pages
        self.idle = 0
        self.incoming: dict[Entry, int] = {}
        """Entries whose copy is on its way here, and the page that is taken for each."""
        self.generations = np.zeros(pages, np.uint32) if generations is None else generations
        self.lent: Counter[int] = Counter()
        """Pages that leases hold, and how many do."""
        self.on_short: Callable[[], bool] = lambda: False
        """Called when pages are wanted and too few may go: whether somebody let go of one, so that it may be tried
        again."""
        self._order: EvictionOrder[M] = EvictionOrder(tier, self.members, self.pool, visits)

    @abstractmethod
    def copy_of(self, entry: Entry) -> M | None:
        """The entry's copy here."""

    @abstractmethod
    def entry_of(self, member: M) -> Entry:
        """Whose copy it is."""

    @abstractmethod
    def store(self, entry: Entry, page: int) -> bool:
        """The entry has a copy here, on a page that somebody holds. False: it had one, or its parent has none."""

    def page_of(self, entry: Entry) -> int:
        """The page of the entry's copy here; GONE if there is none."""
        copy = self.copy_of(entry)
        return GONE if copy is None else copy.page

    def take(self, entries: Sequence[Entry]) -> list[int] | None:
        """A page for each, one reference on it; their content is still to come. None: there are too few."""
        return self.pool.allocate(len(entries))

    def add(self, member: M) -> None:
        """A member on a page that somebody holds. Its base is here."""
        self.pool.share([member.page])
        self.members[member.page] = member
        if member.base is not None:
            member.base.children += 1

    def hold(self, pages: Sequence[int]) -> None:
        """One more holder of members' pages, each named once: they stay."""
        references = self.pool.references
        self.idle -= sum(references(page) == 1 for page in pages)
        self.pool.share(pages)

    def let_go(self, pages: Iterable[int]) -> None:
        """One holder less. A page of no member is freed."""
        references = self.pool.references
        released = list(pages)
        self.pool.release(released)
        for page in dict.fromkeys(released):
            member = self.members[page]
            if member is not None and references(page) == 1:
                self.idle += 1
                self._order.add(member)

    def touched(self, entries: Iterable[Entry]) -> None:
        """Another visit has used these, wherever their pages were read."""
        for entry in entries:
            member = self.copy_of(entry)
            if member is not None:
                self._order.add(member)

    def following(self, count: int, *, fetched: bool = True) -> list[M]:
        """The next to go, at most `count`, children before parents. Changes nothing. `fetched`: also what is being
        fetched, which comes last."""
        return self._order.following(min(count, self.idle), fetched=fetched)

    def unused_since(self, visit: int, count: int) -> list[M]:
        """At most `count` that may go and are not protected, last used by that visit or before it. Changes nothing."""
        return self._order.unused_since(visit, count)

    def may_go(self, member: M) -> bool:
        """Whether the member could be let go right now."""
        return member.page != GONE and self._order.is_idle_leaf(member)

    def evict(self, count: int) -> list[M] | None:
        """Lets the next `count` go, or none at all: None. Children come before parents. What is lent is not kept."""
        while True:
            taken = self._order.take(count) if count <= self.idle else None
            if taken is not None:
                self._free(taken)
                return taken
            # Leases end only where that can help.
            if not self.lent or count > self.idle + len(self.lent) or not self.on_short():
                return None

    def lend(self, page: int) -> None:
        """A lease holds a member's page, and with it those before it: they have a child here."""
        self.hold([page])
        self.lent[page] += 1

    def take_back(self, page: int) -> None:
        """A lease on the page has ended."""
        self.lent[page] -= 1
        if not self.lent[page]:
            del self.lent[page]
        self.let_go([page])

    def remove(self, member: M) -> None:
        """Lets this one go; it may go (`may_go`)."""
        self.members[member.page] = None
        if member.base is not None:
            member.base.children -= 1
            self._order.add(member.base)  # type: ignore[arg-type]  # the base of a member is one
        self._free([member])

    def clear(self) -> None:
        """Nobody is a member any more. Pages that others hold become theirs alone."""
        members = list(self)
        for member in members:
            self.members[member.page] = None
        self._order.clear()
        self._free(members)
        self.idle = 0

    def __iter__(self) -> Iterator[M]:
        return iter([member for member in self.members if member is not None])

    def stats(self) -> TierLoad:
        """As of now. Pages whose content is on its way are in flight, like freed ones that a step may still see."""
        pool, arriving = self.pool, len(self.incoming)
        resident, in_flight = pool.resident - arriving, pool.in_flight + arriving
        leased = sum(pool.references(page) == leases + self._own(page) for page, leases in self.lent.items())
        return TierLoad(
            self.tier,
            pool.total,
            pool.free,
            resident,
            in_flight,
            cached=self.idle,
            leased=leased,
            longest_free=pool.longest_free,
        )

    def check(self) -> None:
        """Counts everything anew. Raises RuntimeError with the first thing that does not add up."""
        self.pool.check()
        name = self.tier.name.lower()
        children = [0] * len(self.members)
        idle = 0
        for page, member in enumerate(self.members):
            if member is None:
                continue
            idle += self.pool.references(page) == 1
            if member.page != page:
                raise RuntimeError(f"{name} page {page} has a member that says {member.page}")
            if (parent := member.base) is not None:
                place = parent.page
                if place == GONE or self.members[place] is not parent:
                    raise RuntimeError(f"{name} page {page} is resident without its parent")
                children[place] += 1
        for one in self:
            if one.children != children[one.page]:
                raise RuntimeError(f"{name} page {one.page} has {children[one.page]} children, counts {one.children}")
        for page, leases in self.lent.items():
            if self.pool.references(page) < leases + self._own(page):
                raise RuntimeError(f"{name} page {page} is lent {leases} times, but held less often")
        if idle != self.idle:
            raise RuntimeError(f"{idle} {name} pages are idle, {self.idle} are counted")
        self._order.check()

    def _own(self, page: int) -> int:
        """References to a page that are the level's."""
        return self.members[page] is not None

    def _free(self, members: list[M]) -> None:
        pages = [member.page for member in members]
        self.generations[pages] += 1  # before anybody else may write there
        self.pool.release(pages)
        self.idle -= len(members)
        for member in members:
            member.page = GONE

    def adopt(self) -> None:
        """`members` was filled by other means, with their children counted, in a level that was empty."""
        pages = self.pool.allocate(self.pool.total)
        if pages is None:
            raise RuntimeError(f"the {self.tier.name.lower()} tier is in use already")
        self.pool.release([page for page in pages if self.members[page] is None])
        self.idle = self.pool.resident
        self._order.fill()


class DeviceLevel(Level[Entry]):
    """The device: an entry is its own copy here."""

    def __init__(self, pages: int, visits: Visits, *, closed: bool = True) -> None:
        super().__init__(Tier.DEVICE, pages, visits, closed=closed)

    def copy_of(self, entry: Entry) -> Entry | None:
        return entry if entry.page != GONE else None

    def entry_of(self, member: Entry) -> Entry:
        return member

    def store(self, entry: Entry, page: int) -> bool:
        orphan = entry.parent is not None and entry.parent.page == GONE
        if entry.page != GONE or (orphan and self.closed):
            return False
        entry.page, entry.children, entry.alone = page, 0, orphan
        self.add(entry)
        return True

    def part(self, entry: Entry) -> None:
        """From now on the entry needs its parent here no more."""
        base = entry.base
        if entry.page != GONE and base is not None:
            entry.alone = True
            base.children -= 1
            self._order.add(base)


class LowerLevel(Level[Copy]):
    """Host or disk: where an entry's copy is kept in the entry itself."""

    def __init__(
        self, tier: Tier, pages: int, visits: Visits, generations: Generations | None = None, *, closed: bool = True
    ) -> None:
        super().__init__(tier, pages, visits, generations, closed=closed)

    def copy_of(self, entry: Entry) -> Copy | None:
        return entry.host if self.tier is Tier.HOST else entry.disk

    def entry_of(self, member: Copy) -> Entry:
        return member.entry

    def store(self, entry: Entry, page: int) -> bool:
        base = self.copy_of(entry.parent) if entry.parent is not None else None
        orphan = entry.parent is not None and base is None
        if self.copy_of(entry) is not None or (orphan and self.closed):
            return False
        copy = Copy(entry, page, base)
        self._note(entry, copy)
        self.add(copy)
        return True

    def _free(self, members: list[Copy]) -> None:
        super()._free(members)
        for copy in members:
            self._note(copy.entry, None)

    def _note(self, entry: Entry, copy: Copy | None) -> None:
        if self.tier is Tier.HOST:
            entry.host = copy
        else:
            entry.disk = copy
