"""Which pages nobody used for too long. Uses are known by visit, so it is noted when visits were."""

from collections import deque
from collections.abc import Callable

from trunkline.agent.cache.catalog import Catalog, Reason
from trunkline.agent.cache.level import LowerLevel
from trunkline.agent.cache.visits import Visits

STEPS = 64
"""Times that are noted within the time to live: pages stay up to one step longer."""
BATCH = 256
"""Pages that are let go at a time."""


class Expiry:
    """Lets pages of a tier go some time after their last use, wherever that read them. Used from the engine thread.

    What lay on the disk at the start counts as used then.
    """

    def __init__(self, catalog: Catalog, visits: Visits, ttl_s: float, clock: Callable[[], float]) -> None:
        self._catalog, self._visits, self._ttl_s, self._clock = catalog, visits, ttl_s, clock
        self._times: deque[tuple[float, int]] = deque()
        """When, and the number of the last visit by then."""
        self._unused = -1
        """Pages last used by this visit or before it have lived long enough."""

    def turn(self, level: LowerLevel) -> None:
        """Lets some go. Never waits."""
        now = self._clock()
        if not self._times or now >= self._times[-1][0] + self._ttl_s / STEPS:
            self._times.append((now, self._visits.latest()))
        while self._times and now >= self._times[0][0] + self._ttl_s:
            self._unused = self._times.popleft()[1]
        for copy in level.unused_since(self._unused, BATCH):
            self._catalog.remove(level, copy, Reason.EXPIRED)
