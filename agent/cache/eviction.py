"""Which pages of a tier may go, and in which order."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar, cast

from trunkline.agent.cache.entry import Member
from trunkline.kernels.core import PagePool

M = TypeVar("M", bound=Member)


class EvictionOrder(Generic[M]):
    """Idle leaves, least recently used first. A leaf has no child in the tier; idle: only the cache itself holds it.

    A heap of (used, page) with lazy deletion: O(log n) for each page that goes, and nothing to update when a leaf is
    matched or gets a child. What is out of date is recognised when it comes up: `used` is new at every release.
    """

    def __init__(self, resident: list[M | None], pool: PagePool) -> None:
        """`resident` maps page to member; it is the tier's own, `take` removes from it."""
        self._resident = resident
        self._pool = pool
        self._heap: list[tuple[int, int]] = []

    def add(self, member: M) -> None:
        """The member may have become an idle leaf."""
        if self.is_idle_leaf(member):
            heappush(self._heap, (member.used, member.page))
            if len(self._heap) > 2 * len(self._resident):
                self._heap = [item for item in set(self._heap) if self._member(item)]
                heapify(self._heap)

    def take(self, count: int) -> list[M] | None:
        """Takes the next `count` members to go out of the map, children before parents; None and no change if there
        are not so many (a page whose descendant is held cannot go)."""
        taken = self._pop(count)
        if len(taken) < count:
            self._put_back(taken)
            return None
        return taken

    def following(self, count: int) -> list[M]:
        """The next to go, at most `count`, children before parents. Changes nothing."""
        taken = self._pop(count)
        self._put_back(taken)
        return taken

    def is_idle_leaf(self, member: M) -> bool:
        """Whether it may go now."""
        return member.children == 0 and self._pool.references(member.page) == 1

    def fill(self) -> None:
        """All members are new, and idle."""
        self._heap = sorted(
            (member.used, member.page) for member in self._resident if member is not None and not member.children
        )

    def clear(self) -> None:
        self._heap.clear()

    def check(self) -> None:
        """Raises RuntimeError if an idle leaf would never be found."""
        queued = set(self._heap)
        for member in self._resident:
            if member is not None and self.is_idle_leaf(member) and (member.used, member.page) not in queued:
                raise RuntimeError(f"page {member.page} is an idle leaf, but is not queued for eviction")

    def _pop(self, count: int) -> list[M]:
        taken: list[M] = []
        while self._heap and len(taken) < count:
            member = self._member(heappop(self._heap))
            if member is None:
                continue
            taken.append(member)
            self._resident[member.page] = None
            if member.parent is not None:
                member.parent.children -= 1
                self.add(cast(M, member.parent))
        return taken

    def _put_back(self, taken: list[M]) -> None:
        for member in taken:
            self._resident[member.page] = member
            if member.parent is not None:
                member.parent.children += 1
            self.add(member)

    def _member(self, item: tuple[int, int]) -> M | None:
        used, page = item
        member = self._resident[page]
        return member if member is not None and member.used == used and self.is_idle_leaf(member) else None
