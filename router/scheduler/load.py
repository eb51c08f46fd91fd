"""How busy nodes are: the router's own account of what it placed, corrected by what nodes report.

The own account is immediate: a placement counts the moment it is made. A report is authoritative, but it describes a
moment before the last placements arrived. Time is cut into eras by the reports of a node:

    report k-1 .... report k .... now          backlog = what report k says, less what was computed since,
              era k-1       era k                        plus what was placed in eras k-1 and k and has not begun

A placement may count twice for one era; it is never missed, so that a report never causes a herd.
"""

from trunkline.router.scheduler.cost import Offer
from trunkline.shared.wire import Load

STALE_S = 2.0
"""Without a report for so long, a node's backlog is taken from the own account alone."""
DECODE_TOKENS = 16
"""A request in decode is taken to delay a prefill as much as this many tokens of prefill before it."""
_WINDOW_S = 10.0


class NodeLoad:
    """Load of one node. Used on the event loop only; times are `time.monotonic()`."""

    __slots__ = (
        "_by_era",
        "_era",
        "_max_running",
        "_others",
        "_report_at",
        "_reported_backlog",
        "_work_at",
        "_work_share",
        "pending",
        "prefill_rate",
        "running",
    )

    def __init__(self, prefill_rate: float, max_running: int, now: float) -> None:
        self.prefill_rate = prefill_rate
        """Tokens per second."""
        self.running = 0
        """Placed by this router and not finished."""
        self._max_running = max_running
        self._era = 0
        self.pending = 0
        """Uncached tokens placed by this router whose response has not begun."""
        self._by_era: dict[int, int] = {0: 0}
        """The same by the era they were placed in."""
        self._reported_backlog = 0
        self._others = 0
        """Requests of other routers, as of the last report."""
        self._report_at = float("-inf")
        self._work_share = 0.0
        self._work_at = now

    def place(self, uncached: int, now: float) -> int:
        """A request is sent. Returns its era, which `begin` wants back."""
        self.running += 1
        self.pending += uncached
        self._by_era[self._era] += uncached
        self._work_share = self._recent_work(now) + uncached / self.prefill_rate / _WINDOW_S
        self._work_at = now
        return self._era

    def begin(self, uncached: int, era: int) -> None:
        """Its prefill is over: the response began, or the request was given up."""
        self.pending -= uncached
        self._by_era[max(era, self._era - 2)] -= uncached

    def finish(self) -> None:
        """Its response ended, or the request was given up."""
        self.running -= 1

    def report(self, load: Load, now: float) -> None:
        """The node says itself how busy it is."""
        self._reported_backlog = load.backlog_tokens
        self._others = max(0, load.running + load.waiting - self.running)
        self._report_at = now
        self._era += 1
        # Eras before the previous one are covered by the report: they are kept as one.
        older = self._by_era.pop(self._era - 3, 0) + self._by_era.get(self._era - 2, 0)
        self._by_era[self._era - 2], self._by_era[self._era] = older, 0
        if load.prefill_rate > 0:
            self.prefill_rate = load.prefill_rate
        if load.max_running > 0:
            self._max_running = load.max_running

    def offer(self, uncached: int, now: float) -> Offer:
        """What the node could do for a request that leaves so many tokens to compute."""
        requests = self.running + self._others
        backlog: float = self.pending
        age = now - self._report_at
        if age < STALE_S:
            known = self._reported_backlog - self.prefill_rate * age
            backlog = self._by_era[self._era] + self._by_era[self._era - 1] + (known if known > 0.0 else 0.0)
        rate = self.prefill_rate
        return uncached / rate, (backlog + DECODE_TOKENS * requests) / rate, requests / self._max_running

    def share(self) -> float:
        """Share of the node's batch that is taken; above 1 when requests wait."""
        return (self.running + self._others) / self._max_running

    def utilisation(self, now: float) -> float:
        """Share of its time that the node needs for what was placed lately, or of its batch if that is more."""
        return max(self._recent_work(now), self.share())

    def _recent_work(self, now: float) -> float:
        return self._work_share * max(0.0, 1.0 - (now - self._work_at) / _WINDOW_S)
