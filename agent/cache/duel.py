"""Which of two orders does better at present: the learned one, or least recently used first.

Both keep a small cache of their own beside the real one, of keys alone and for a sample of all pages. The learned order
decides while it finds more, by more than chance would have it, and by more than deciding has cost lately.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trunkline.kernels.core import Heat

SAMPLE_PAGES = 2048
"""Of each small cache: enough to tell the orders apart."""
CERTAIN = 1.5
"""Standard deviations of what chance would make of a lead. With fewer, one is followed that is none; with more, one is
followed late."""
DECAY = 1 / 4096
"""Of lead and loss that is forgotten with each request, so that traffic may change."""
COVERS = 2.0
"""Times over that the lead must cover what deciding has cost: so that is never more than half of the lead there was."""


class Duel:
    """For a tier of `pages` pages. Used from one thread."""

    def __init__(self, pages: int, heat: Heat, tier: int) -> None:
        """Two tiers of `heat` are for the small caches: `tier` and the one after it."""
        self._every = max(1, pages // SAMPLE_PAGES)
        capacity = max(1, pages // self._every)
        self._learned = Shadow(capacity, heat, tier, heat.take)
        self._oldest = Shadow(capacity, heat, tier + 1, heat.take_oldest)
        self.lead = 0.0
        """Pages of the sample that the learned order found, and the other did not."""
        self.loss = 0.0
        """By how much the lead fell, from its highest, while the learned order decided."""
        self.learned = False
        """Whether the learned order decides."""
        self._variance = 0.0

    def request(self, keys: Sequence[int], found: int, trunk: int, tail: int) -> None:
        """A request for these pages is done; its visits to the first `found` of them, and to the rest."""
        sample = [(key, trunk if at < found else tail) for at, key in enumerate(keys) if not key % self._every]
        lead = self._learned.request(sample) - self._oldest.request(sample)
        self.lead += lead - self.lead * DECAY
        self.loss = max(0.0, self.loss - self.loss * DECAY - lead * self.learned)
        self._variance += lead * lead - self._variance * DECAY
        self.learned = self.lead > CERTAIN * math.sqrt(self._variance) + COVERS * self.loss


@dataclass(eq=False, slots=True)
class _Page:
    key: int
    slot: int
    parent: "_Page | None"
    visit: int
    children: int = 0


class Shadow:
    """A cache of prefixes in its simplest form: a tree of keys, of which the leaf that `take` names goes."""

    def __init__(self, capacity: int, heat: Heat, tier: int, take: Callable[[int], int | None]) -> None:
        heat.clear(tier)
        self._heat, self._tier, self._take = heat, tier, take
        self._pages: dict[int, _Page] = {}
        self._slots: list[_Page | None] = [None] * capacity
        self._free = list(range(capacity))

    def request(self, path: Sequence[tuple[int, int]]) -> int:
        """How many of the path's leading keys were there; all of them are afterwards, as far as they fit.

        `path`: each key with the visit that uses it.
        """
        last, found = None, 0
        for key, visit in path:
            page = self._pages.get(key)
            if page is None:
                break
            page.visit, last = visit, page
            found += 1
        for key, visit in path[found:]:
            page = self._add(key, last, visit)
            if page is None:
                break
            last = page
        if last is not None and not last.children:
            self._heat.offer(self._tier, last.slot, last.visit)
        return found

    def _add(self, key: int, parent: _Page | None, visit: int) -> _Page | None:
        """None: the path fills the cache."""
        if parent is not None:
            parent.children += 1  # so that it does not go to make room
        slot = self._free.pop() if self._free else self._evict()
        if slot is None:
            if parent is not None:
                parent.children -= 1
            return None
        page = self._pages[key] = self._slots[slot] = _Page(key, slot, parent, visit)
        return page

    def _evict(self) -> int | None:
        while (slot := self._take(self._tier)) is not None:
            page = self._slots[slot]
            if page is None or page.children:
                continue
            self._slots[slot] = None
            del self._pages[page.key]
            if (parent := page.parent) is not None:
                parent.children -= 1
                if not parent.children:
                    self._heat.offer(self._tier, parent.slot, parent.visit)
            return slot
        return None
