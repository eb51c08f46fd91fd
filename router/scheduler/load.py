"""How busy nodes are: the router's own account of what it placed, and what nodes report.

The own account is immediate: a placement counts the moment it is made, until its response begins. It is kept in tokens
and pairs, and priced anew when it has changed or the node has reported.

A report describes a moment up to WINDOW_S ago, when other requests of ours were under way than now. So it is believed
only about what is true whenever in that time it was made:

- What it says beyond the most that the own account said since is prefill of others' requests.
- Of what was placed before that time, no more can be left than it says; the rest is computed, though the response may
  not have begun (it begins with its last token, if it is not streamed).

A late report never hides a placement and never counts one twice, so it causes no herd.

Routers that share a fleet tell each other their accounts. The shares of the others count as the own one does; what a
report says beyond them all is of somebody who tells nothing.
"""

import math
from typing import TYPE_CHECKING

from trunkline.router.scheduler.board import Board, Row
from trunkline.router.scheduler.bus import Bus
from trunkline.router.scheduler.link import Link
from trunkline.router.scheduler.prefill import Pace, Prices, pairs
from trunkline.router.scheduler.share import NO_SHARE, Share
from trunkline.router.scheduler.sizes import NOBODY, Sizes
from trunkline.router.scheduler.window import WINDOW_S, Least, Recent
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import LEAST_RATE, Finished, Load

if TYPE_CHECKING:
    from trunkline.router.admission.lane import Lane

_WORK_WINDOW_S = 10.0
_ROOM_WINDOW_S = 10.0
"""Longer than a request takes to come and go, so that the least room in it tells a full cache."""


class NodeLoad:
    """Load of one node. Used on the event loop only; times are `time.monotonic()`."""

    __slots__ = (
        "_batch",
        "_believed_until",
        "_decode_s",
        "_dirty",
        "_max_running",
        "_others",
        "_others_s",
        "_pairs",
        "_priced",
        "_prices",
        "_recent",
        "_reported",
        "_reported_at",
        "_reported_in",
        "_row",
        "_shared",
        "_sizes",
        "_work_at",
        "_work_pairs",
        "_work_tokens",
        "bus",
        "excess",
        "fill",
        "full",
        "held_s",
        "lane",
        "link",
        "longer",
        "pace",
        "passed",
        "passes",
        "pending",
        "prefill_rate",
        "room",
        "running",
        "spare",
        "step_tokens",
        "used",
        "wait_s",
    )

    def __init__(
        self,
        prices: Prices,
        max_running: int,
        decode_s: float,
        now: float,
        row: Row,
        bus: Bus,
        dirty: list["NodeLoad"],
    ) -> None:
        """`row` is told the account whenever it is priced. `dirty` gets it when it must be."""
        self._prices = prices
        self._row = row
        self._dirty = dirty
        self._priced = False
        self.pace = Pace(prices)
        self.running = 0
        """Placed by this router and not finished."""
        self.pending = 0
        """Uncached tokens placed by this router whose response has not begun."""
        self.wait_s = 0.0
        """What a request that is placed now waits for, if it passes none."""
        self.excess = 0.0
        """What the node needs for a second of work on top of a node like the fleet. Negative at a fast node."""
        self.passed, self.longer = NOBODY
        """By size: seconds of `wait_s` that a request does not wait for, and how many longer prompts each second of its
        work holds up."""
        self.fill = 0.0
        """Share of the node's batch that is taken; above 1 when requests wait."""
        self.full = False
        """Whether its batch is taken, as far as its size is known: what comes now would queue there."""
        self.held_s = 0.0
        """Prefill of requests that wait at the router for this node; part of `wait_s`."""
        self.lane: Lane | None = None
        """The admission's, if it had to do with this node yet."""
        self.bus = bus
        self.link = Link()
        self.passes = False
        """Whether the node lets shorter prompts pass longer ones, as last reported."""
        self.room = Least(_ROOM_WINDOW_S)
        """Tokens that the cache takes without pushing anything out: what stayed free. Where what is under way is large
        beside the cache, much is free for moments, and nothing stays so."""
        self.spare = 0
        """Tokens that it takes without pushing out what is in use, as last reported."""
        self.used = 0.0
        """Share of its device's KV that is in use, as last reported."""
        self.step_tokens = 0
        """Computed in one step, as last reported; 0: not known."""
        self.prefill_rate = 0.0
        """Tokens per second, as last reported."""
        self._pairs = 0
        self._sizes = Sizes()
        self._shared = NO_SHARE
        """What other routers told of theirs."""
        self._recent = Recent()
        self._reported = math.inf
        """Backlog in tokens as of the last report."""
        self._reported_at = -math.inf
        self._reported_in = 0
        """The window in which that came."""
        self._max_running = max_running
        self._batch = math.inf
        """Requests that the node computes at once, once it has said so."""
        self._decode_s = decode_s
        self._others = 0
        """Requests that no router told of, as of the last report."""
        self._others_s = 0.0
        """Prefill of such requests."""
        self._believed_until = now
        """Until then the last report counts."""
        self._work_tokens = self._work_pairs = 0.0
        """What was placed lately, older placements fading: as of `_work_at`."""
        self._work_at = now
        self.settle()

    def place(self, uncached: int, matched: int, now: float) -> int:
        """A request is sent. Returns what `begin` wants back: when."""
        count = pairs(uncached, matched)
        self.running += 1
        self.pending += uncached
        self._pairs += count
        self._sizes.add(uncached, count)
        shared = self._shared
        window = self._recent.place(uncached, self.pending + shared.pending, self.running + shared.running, now)
        self._change()
        kept = self._kept(now)
        self._work_tokens = self._work_tokens * kept + uncached
        self._work_pairs = self._work_pairs * kept + count
        self._work_at = now
        return window

    def begin(self, uncached: int, matched: int, window: int) -> None:
        """Its prefill is over: the response began, or the request was given up."""
        self._recent.begin(uncached, window)
        self.pending -= uncached
        count = pairs(uncached, matched)
        self._pairs -= count
        self._sizes.remove(uncached, count)
        self._change()

    def finish(self) -> None:
        """Its response ended, or the request was given up."""
        self.running -= 1
        self._change()

    def pull(self, lender: "NodeLoad", tokens: int, now: float) -> None:
        """So much of a prompt comes from there."""
        self.link.pull(lender.link, tokens, now)
        self._change()
        lender._change()

    def hold(self, seconds: float) -> None:
        """So much more prefill waits at the router for this node; negative: less."""
        self.held_s += seconds
        self._change()

    def report(self, load: Load, now: float) -> None:
        """The node says itself how busy it is."""
        self._prices.told(load.prefill_rate)
        shared = self._shared
        self._recent.turn(self.pending + shared.pending, self.running + shared.running, now)
        self._reported = load.backlog_tokens
        self._reported_at = now
        self._reported_in = int(now / WINDOW_S)
        backlog = load.backlog_tokens - self._recent.most_pending()
        self._others_s = backlog / load.prefill_rate if backlog > 0 and load.prefill_rate >= LEAST_RATE else 0.0
        self.prefill_rate = load.prefill_rate
        self._others = max(0, load.running + load.waiting - self._recent.most_running())
        self._believed_until = now + WINDOW_S
        self.passes = load.patience > 0.0
        self.step_tokens = load.step_tokens
        self.bus.report(load.promote_rate, load.disk_rate)
        self.link.report(load.link_rate, load.pulling_tokens, load.lending_tokens, now)
        for tier in load.tiers:
            if tier.tier == Tier.DEVICE:
                self.room.tell(tier.free * PAGE_TOKENS, now)
                self.spare = (tier.free + tier.cached) * PAGE_TOKENS
                self.used = 1.0 - (tier.free + tier.cached) / max(1, tier.total)
        if load.max_running > 0:
            self._max_running = self._batch = load.max_running
        self._change()

    def learn(self, finished: Finished) -> None:
        """The node says how long a prefill took."""
        uncached = finished.prompt_tokens - finished.cached_tokens
        if uncached > 0 and finished.prefill_s > 0.0 and finished.output_tokens > 0:
            self.pace.learn(uncached, finished.cached_tokens, finished.prefill_s)

    def share(self, now: float) -> Share:
        """The own account, for other routers."""
        return Share(
            self.running, self.pending, self._pairs, self._recent.placed(), self._recent_work(now), self._sizes.told()
        )

    def share_with(self, others: Share, now: float) -> None:
        """What the other routers have there, all together."""
        self._shared = others
        self._recent.place(0, self.pending + others.pending, self.running + others.running, now)
        self._change()

    def retire(self) -> None:
        """Another account is kept of the node from here on; this one goes on for what is still under way on it."""
        self._row = Board().row(0)

    def turn(self, now: float) -> None:
        """Time has gone by: what was reported too long ago is not believed any more. Prices the account."""
        if now >= self._believed_until:
            self._reported = math.inf
            self._others_s = self.used = 0.0
            self._change()
        self.settle()

    def utilisation(self, now: float) -> float:
        """Share of its time that the node needs for what was placed lately, or of its batch or its KV if that is more:
        where requests wait for pages, what is computed twice takes room twice, and finding more is worth more."""
        return max(self._recent_work(now) + self._shared.work, self.fill, self.used)

    def _change(self) -> None:
        """It is priced before it is next looked at: several changes between two decisions cost no more than one."""
        requests = self.running + self._shared.running + self._others
        self.fill = requests / self._max_running
        self.full = requests >= self._batch
        if self._priced:
            self._priced = False
            self._dirty.append(self)

    def settle(self) -> None:
        """Prices the account, if it has changed."""
        if self._priced:
            return
        self._priced = True
        shared, prices = self._shared, self._prices
        slowness = self.pace.slowness
        pending = self.pending + shared.pending
        computed = pending - self._recent.unknown_to(self._reported_in) - shared.recent - self._reported
        left = 1.0 - computed / pending if computed > 0 else 1.0
        seconds = (pending * prices.per_token + (self._pairs + shared.pairs) * prices.per_pair) * slowness * left
        requests = self.running + shared.running + self._others
        self.wait_s = wait_s = seconds + self._others_s + self._decode_s * requests + self.held_s
        self.excess = slowness - 1.0
        if self.passes and seconds > 0.0:
            scale = slowness * left
            self.passed, self.longer = self._sizes.passed(
                shared.sizes, prices.per_token * scale, prices.per_pair * scale, self.step_tokens
            )
            self._row.passing(*self.passed, *self.longer)
        else:
            self.passed, self.longer = NOBODY
        bus, passes, linked = self.bus, self.passed is not NOBODY[0], self.link.rate > 0.0
        self._row.account(self.fill, self._reported_at, wait_s, self.excess, bus.host_s, bus.disk_s, passes, linked)
        if linked:
            link = self.link
            spare = self.spare - self.pending
            self._row.link(link.rate, link.in_free_at, link.out_free_at, spare, self.room.value, self.step_tokens)

    def _recent_work(self, now: float) -> float:
        """Share of its time, at the prices of now: what they were when it was placed may have been far off."""
        prices = self._prices
        seconds = self._work_tokens * prices.per_token + self._work_pairs * prices.per_pair
        return seconds * self.pace.slowness * self._kept(now) / _WORK_WINDOW_S

    def _kept(self, now: float) -> float:
        return math.exp((self._work_at - now) / _WORK_WINDOW_S)
