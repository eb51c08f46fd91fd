"""A modelled node's cache: the agent's own, with its own tiers, on a clock that is given. No page has any bytes."""

from collections import deque
from collections.abc import Callable

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import Lane, Move
from trunkline.agent.cache.lower import LowerTiers
from trunkline.agent.cache.sink import SummarySink

_BATCH = 1
"""Pages of a move: each is a block of the trace."""


def open_cache(pages: int, host_pages: int, sink: SummarySink, page_s: float, clock: Callable[[], float]) -> PageCache:
    """`page_s`: seconds in which a page gets to the host tier. Without `host_pages` there is none.

    With a host tier `PageCache.turn` is to be called now and then. What comes back is for the caller to commit: here
    that has no lane.
    """
    if not host_pages:
        return PageCache(pages, sink)

    def open_lane(name: str, carry: Callable[[Move], None]) -> Lane:
        return ModelledLane(page_s, clock)

    return PageCache(pages, sink, LowerTiers(_NoBytes(host_pages), _BATCH, open_lane=open_lane, clock=clock))


class ModelledLane(Lane):
    """Carries one move after the other, each in the time that its pages take; nothing is copied."""

    def __init__(self, page_s: float, clock: Callable[[], float]) -> None:
        self.moves = 0
        self._depth = 2
        self._page_s = page_s
        self._clock = clock
        self._free_at = 0.0
        self._under_way: deque[tuple[float, Move]] = deque()

    @property
    def lands_at(self) -> float | None:
        """The next move."""
        return self._under_way[0][0] if self._under_way else None

    def submit(self, move: Move) -> None:
        self.moves += 1
        move.seconds = self._page_s * len(move.entries)
        self._free_at = max(self._free_at, self._clock()) + move.seconds
        self._under_way.append((self._free_at, move))

    def carry(self, move: Move) -> None:
        move.seconds = self._page_s * len(move.entries)

    def landed(self) -> Move | None:
        if not self._under_way or self._under_way[0][0] > self._clock():
            return None
        self.moves -= 1
        return self._under_way.popleft()[1]

    def end(self) -> None: ...

    def close(self, timeout: float) -> bool:
        return True


class _NoBytes(HostMemory):
    """As much as the cache asks of the memory whose pages a `ModelledLane` carries."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.page_bytes = 1
        self.generations = np.zeros(pages, np.uint32)
