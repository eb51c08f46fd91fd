"""How much of a computing engine's time the moves of its pages may take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.05
"""Of the time in which the engine computes: CPU seconds of the engine's thread, of the lanes, and of those that read
and write the disk. An engine shall keep nine tenths of its speed, and lacks more than this time alone: memory, and what
its threads wait for each other."""
MOST_OWED_S = 0.05
"""Of these: a second at most after what was sent last, the next pages are."""


class Pace:
    """Where the engine computes on the cores that copy, it lacks each second of copying. So pages that requests wait
    for come as fast as they can while it is idle, and at a bounded share of its time while it computes.

    What makes room does not wait, since an engine without room would copy, or compute, itself; but it counts. Used by
    one thread at a time: the engine, or its keeper.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen_at = clock()
        self._owed_s = 0.0
        self.open = True
        """Whether pages that can wait may be sent in this turn."""
        self.holds = False
        """Whether some were held back in this turn."""
        self.held_s = 0.0
        """For how long some were, ever."""

    def turn(self, *, computing: bool) -> None:
        """`computing`: whether the engine does, or did since the turn before."""
        now = self._clock()
        self.held_s += (now - self._seen_at) * self.holds
        self.holds = False
        self._owed_s = max(0.0, self._owed_s - SHARE * (now - self._seen_at)) if computing else 0.0
        self._seen_at, self.open = now, not self._owed_s

    def may_send(self) -> bool:
        """Whether pages that can wait may be sent; if not, they are held back until a later turn."""
        self.holds |= not self.open
        return self.open

    def spend(self, cpu_s: float) -> None:
        self._owed_s = min(MOST_OWED_S, self._owed_s + cpu_s)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What the caller's thread does meanwhile is for moves."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.spend(time.thread_time() - began)
