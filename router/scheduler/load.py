"""How busy nodes are: the router's own account of what it placed, and what nodes report.

The own account is immediate: a placement counts the moment it is made, until its response begins. It is kept in tokens
and pairs, and priced anew whenever it changes or the node reports.

A report describes a moment up to WINDOW_S ago, when other requests of ours were under way than now. So it is believed
only about what is true whenever in that time it was made:

- What it says beyond the most that the own account said since is prefill of others' requests.
- Of what was placed before that time, no more can be left than it says; the rest is computed, though the response may
  not have begun (it begins with its last token, if it is not streamed).

A late report never hides a placement and never counts one twice, so it causes no herd.
"""

import math

from trunkline.router.scheduler.cost import Offer
from trunkline.router.scheduler.prefill import Pace, Prices, pairs
from trunkline.router.scheduler.window import WINDOW_S, Peak, Recent
from trunkline.shared.wire import Finished, Load

_WORK_WINDOW_S = 10.0


class NodeLoad:
    """Load of one node. Used on the event loop only; times are `time.monotonic()`."""

    __slots__ = (
        "_believed_until",
        "_decode_s",
        "_max_running",
        "_most_pending",
        "_most_running",
        "_others",
        "_others_s",
        "_pairs",
        "_prices",
        "_recent",
        "_reported",
        "_work_at",
        "_work_share",
        "pace",
        "pending",
        "pending_s",
        "prefill_rate",
        "running",
    )

    def __init__(self, prices: Prices, max_running: int, decode_s: float, now: float) -> None:
        self._prices = prices
        self.pace = Pace(prices)
        self.running = 0
        """Placed by this router and not finished."""
        self.pending = 0
        """Uncached tokens placed by this router whose response has not begun."""
        self.pending_s = 0.0
        """What the node needs for them."""
        self.prefill_rate = 0.0
        """Tokens per second, as last reported."""
        self._pairs = 0
        self._recent = Recent()
        self._reported = math.inf
        """Backlog in tokens as of the last report."""
        self._max_running = max_running
        self._decode_s = decode_s
        self._most_pending = Peak()
        self._most_running = Peak()
        self._others = 0
        """Requests of other routers, as of the last report."""
        self._others_s = 0.0
        """Prefill of other routers' requests."""
        self._believed_until = now
        """Until then the last report counts."""
        self._work_share = 0.0
        self._work_at = now

    def place(self, uncached: int, matched: int, now: float) -> int:
        """A request is sent. Returns what `begin` wants back: when."""
        window = self._recent.add(uncached, now)
        if now >= self._believed_until:
            self._reported = math.inf
        self.running += 1
        self.pending += uncached
        self._pairs += pairs(uncached, matched)
        self._price()
        self._most_pending.see(self.pending, now)
        self._most_running.see(self.running, now)
        work_s = self._prices.seconds(uncached, matched) * self.pace.slowness
        self._work_share = self._recent_work(now) + work_s / _WORK_WINDOW_S
        self._work_at = now
        return window

    def begin(self, uncached: int, matched: int, window: int) -> None:
        """Its prefill is over: the response began, or the request was given up."""
        self._recent.remove(uncached, window)
        self.pending -= uncached
        self._pairs -= pairs(uncached, matched)
        self._price()

    def finish(self) -> None:
        """Its response ended, or the request was given up."""
        self.running -= 1

    def report(self, load: Load, now: float) -> None:
        """The node says itself how busy it is."""
        if load.prefill_rate > 0 and not self._prices.learned:
            self._prices.assume(load.prefill_rate)
        self._recent.turn(now)
        self._reported = load.backlog_tokens
        self._price()
        backlog = load.backlog_tokens - self._most_pending.see(self.pending, now)
        self._others_s = backlog / load.prefill_rate if backlog > 0 and load.prefill_rate > 0 else 0.0
        self.prefill_rate = load.prefill_rate
        self._others = max(0, load.running + load.waiting - self._most_running.see(self.running, now))
        self._believed_until = now + WINDOW_S
        if load.max_running > 0:
            self._max_running = load.max_running

    def learn(self, finished: Finished) -> None:
        """The node says how long a prefill took."""
        uncached = finished.prompt_tokens - finished.cached_tokens
        if uncached > 0 and finished.prefill_s > 0.0 and finished.output_tokens > 0:
            self.pace.learn(uncached, finished.cached_tokens, finished.prefill_s)

    def offer(self, work: float, now: float) -> Offer:
        """What the node could do for a request that is so many seconds of work for a node like the fleet."""
        requests = self.running + self._others
        wait = self.pending_s + self._decode_s * requests + work * (self.pace.slowness - 1.0)
        if self._others_s and now < self._believed_until:
            wait += self._others_s
        return work, wait, requests / self._max_running

    def share(self) -> float:
        """Share of the node's batch that is taken; above 1 when requests wait."""
        return (self.running + self._others) / self._max_running

    def utilisation(self, now: float) -> float:
        """Share of its time that the node needs for what was placed lately, or of its batch if that is more."""
        return max(self._recent_work(now), self.share())

    def _price(self) -> None:
        pending, prices = self.pending, self._prices
        seconds = (pending * prices.per_token + self._pairs * prices.per_pair) * self.pace.slowness
        computed = pending - self._recent.total() - self._reported
        self.pending_s = seconds * (1.0 - computed / pending) if computed > 0 else seconds

    def _recent_work(self, now: float) -> float:
        return self._work_share * math.exp((self._work_at - now) / _WORK_WINDOW_S)
