"""Which resident pages may go, and in which order."""

from heapq import heapify, heappop, heappush

from trunkline.agent.cache.entry import Entry
from trunkline.kernels.core import PagePool


class EvictionOrder:
    """Idle leaves, least recently used first. A leaf has no resident child; idle means that only the cache holds it.

    A heap of (used, page) with lazy deletion: O(log n) for each page that goes, and nothing to update when a leaf is
    matched or gets a child. What is out of date is recognised when it comes up: `used` is new at every release.
    """

    def __init__(self, resident: list[Entry | None], pool: PagePool) -> None:
        """`resident` maps page to entry; it is the cache's own, `take` removes from it."""
        self._resident = resident
        self._pool = pool
        self._heap: list[tuple[int, int]] = []

    def add(self, entry: Entry) -> None:
        """The entry may have become an idle leaf."""
        if self._is_idle_leaf(entry):
            heappush(self._heap, (entry.used, entry.page))
            if len(self._heap) > 2 * len(self._resident):
                self._heap = [item for item in set(self._heap) if self._entry(item)]
                heapify(self._heap)

    def take(self, count: int) -> list[Entry] | None:
        """Takes the next `count` entries to go out of the map, children before parents; None and no change if there
        are not so many (a page whose descendant is held cannot go)."""
        taken: list[Entry] = []
        while len(taken) < count:
            if not self._heap:
                self._put_back(taken)
                return None
            entry = self._entry(heappop(self._heap))
            if entry is None:
                continue
            taken.append(entry)
            self._resident[entry.page] = None
            if entry.parent is not None:
                entry.parent.children -= 1
                self.add(entry.parent)
        return taken

    def clear(self) -> None:
        self._heap.clear()

    def check(self) -> None:
        """Raises RuntimeError if an idle leaf would never be found."""
        queued = set(self._heap)
        for entry in self._resident:
            if entry is not None and self._is_idle_leaf(entry) and (entry.used, entry.page) not in queued:
                raise RuntimeError(f"page {entry.page} is an idle leaf, but is not queued for eviction")

    def _put_back(self, taken: list[Entry]) -> None:
        for entry in taken:
            self._resident[entry.page] = entry
            if entry.parent is not None:
                entry.parent.children += 1
            self.add(entry)

    def _entry(self, item: tuple[int, int]) -> Entry | None:
        used, page = item
        entry = self._resident[page]
        return entry if entry is not None and entry.used == used and self._is_idle_leaf(entry) else None

    def _is_idle_leaf(self, entry: Entry) -> bool:
        return entry.children == 0 and self._pool.references(entry.page) == 1
