"""So many a second, with as many at once."""

import time
from collections.abc import Callable


class Pace:
    """A leaky bucket that says how long to wait. Used by one task."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = 1.0 / rate
        self._clock = clock
        self._due = clock()

    def wait(self) -> float:
        """Seconds from now until the next one; 0 while fewer than a second's worth came lately."""
        now = self._clock()
        self._due = max(self._due, now - 1.0) + self._each
        return max(0.0, self._due - now)
