"""Pages that stay while others can go: pinned ones, the beginning that nearly all requests share, what waits, and
what is being fetched."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

SHARE = 0.95
"""Of recent requests that a core page is part of."""
WINDOW = 128
"""Requests over which that is counted."""
PART = 4
"""At most one in so many of the device's pages is pinned, and at most one in so many is core."""


class Protected:
    """Keys of pages. Used from the engine thread, except `pinned`, which another thread may set."""

    def __init__(self, pages: int) -> None:
        """`pages`: of the device."""
        self.most = pages // PART
        """Pages that may be pinned."""
        self.pinned: frozenset[int] = frozenset()
        self.core = Core(self.most)
        self.fetched: Counter[int] = Counter()
        """What fetches bring to the device, and how many do: these go after all others. What has landed is idle until
        the rest has, and should make room neither for that nor for another fetch."""
        self._awaited: Counter[int] = Counter()

    def __contains__(self, key: object) -> bool:
        return key in self._awaited or key in self.fetched or key in self.pinned or key in self.core.keys

    def __len__(self) -> int:
        return len(self.pinned | self.core.keys | self._awaited.keys() | self.fetched.keys())

    def wait(self, keys: Iterable[int]) -> None:
        """A request that waits for its turn has found these."""
        self._awaited.update(keys)

    def waited(self, keys: Iterable[int]) -> None:
        """It waits no more."""
        _take_back(self._awaited, keys)

    def fetch(self, keys: Iterable[int]) -> None:
        """A fetch has begun to bring these to the device, or what follows them."""
        self.fetched.update(keys)

    def fetch_ended(self, keys: Iterable[int]) -> None:
        """It brings no more."""
        _take_back(self.fetched, keys)


class Core:
    """The beginning that more than SHARE of the last requests had in common.

    What more than half of all requests have is of one chain. So one request's chain stands for all, and it is counted
    how far the others go along with it.
    """

    def __init__(self, most: int) -> None:
        """`most`: pages."""
        self.keys: frozenset[int] = frozenset()
        self._most = most
        self._chain: Sequence[int] = ()
        self._reached: Counter[int] = Counter()
        """Requests, by how many pages they have in common with the chain."""
        self._next: Sequence[int] = ()
        self._requests = 0

    def request(self, keys: Sequence[int]) -> None:
        """One for these pages, in order."""
        self._reached[_common(self._chain, keys)] += 1
        if not self.keys or self.keys.issubset(keys[: self._most]):
            self._next = keys[: self._most]
        self._requests += 1
        if self._requests == WINDOW:
            self._settle()

    def _settle(self) -> None:
        """The core is as the window says; the next one is counted along a chain that has it, and goes beyond."""
        depth, going = 0, self._requests
        for depth in range(len(self._chain) + 1):
            going -= self._reached[depth]
            if going <= SHARE * self._requests:
                break
        self.keys = frozenset(self._chain[:depth])
        self._chain = tuple(self._next)
        self._reached.clear()
        self._requests = 0


def _take_back(counts: Counter[int], keys: Iterable[int]) -> None:
    for key in keys:
        counts[key] -= 1
        if counts[key] <= 0:
            del counts[key]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many pages two chains have in common: a key stands for all before it."""
    shorter = min(len(one), len(other))
    return bisect_left(range(shorter), True, key=lambda at: one[at] != other[at])
