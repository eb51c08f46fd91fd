"""Pages that a waiting request wants back on the device."""

import math
from collections.abc import Sequence

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.pull import Share
from trunkline.shared.names import PAGE_TOKENS

LEAST_WAIT_S = 0.1
MOST_WAIT_S = 10.0
"""Bounds of the time that a request waits for this node's own pages rather than computing them."""
PULL_SHARE, PULL_SLACK_S = 0.2, 0.03
"""Another node may be anything between quick and dead: waiting for its pages costs at most that share of computing
them, and so many seconds."""
PULL_PAUSE_S = 0.25
"""Where it is not known how quickly pages are computed: for the next one to come."""


class Fetch:
    """Used from the engine thread. First what is elsewhere comes to the host; to the device, once it is asked for."""

    __slots__ = (
        "_at",
        "_moved_at",
        "_taken",
        "chain",
        "compute_s",
        "ended",
        "entries",
        "keys",
        "reads",
        "seconds",
        "share",
        "wanted_at",
    )

    def __init__(self, chain: Chain, entries: Sequence[Entry], compute_s: float, share: Share | None = None) -> None:
        """`entries`: of the chain, in order, parents first. `compute_s`: how long it would take to compute a page
        instead; inf: not known. `share`: of a pull, that brings the pages after these."""
        self.chain = chain
        self.entries = list(entries)
        self.compute_s = compute_s
        self.share = share
        self.wanted_at: float | None = None
        """Since when the pages are needed on the device; None: not yet."""
        self.ended = False
        """All came, or no more will."""
        self.seconds = 0.0
        """From when they were wanted to the end."""
        self.reads = 0
        """Pages asked of the disk. Each once: one that did not stay in the host will not the next time either."""
        self._at = 0
        self._taken = 0
        """Pages of the share that are among the entries."""
        self._moved_at = 0.0
        last = self.entries[-1].depth // PAGE_TOKENS if self.entries else len(chain.entries)
        self.keys = chain.keys[: last + (share.pages if share else 0)]
        """From the chain's first page to the last one that is to be on the device."""

    @property
    def came(self) -> int:
        """Pages that were on the device when it was last looked."""
        return self._at

    @property
    def pulled(self) -> int:
        """Of these, those that came from another node."""
        return max(0, self._at - (len(self.entries) - self._taken))

    @property
    def expected(self) -> int:
        """Pages that will be on the device, if all goes well."""
        return len(self.entries) + (self.share.pages - self._taken if self.share else 0)

    def missing(self) -> Sequence[Entry]:
        """What is not on the device yet, of what is in this node."""
        while self._at < len(self.entries) and self.entries[self._at].page != GONE:
            self._at += 1
        return self.entries[self._at :]

    def take_pulled(self) -> bool:
        """Pages of the share that have landed are among the entries from now on. Whether more of them will come."""
        if self.share is None:
            return False
        pull, first, pages = self.share
        landed = min(pull.landed - first, pages)
        if landed > self._taken:
            self.entries += pull.entries[first + self._taken : first + landed]
            self._taken = landed
        return pull.pending and self._taken < pages

    def is_late(self, now: float) -> bool:
        """Once wanted: whether computing what is missing is better than to go on waiting. What comes late stays in the
        cache."""
        if self.wanted_at is None:
            self.wanted_at = self._moved_at = now
        before = self._at
        self.missing()
        if self._at > before:
            self._moved_at = now
        waited_s = self.seconds = now - self.wanted_at
        if self.share is None:
            return waited_s > max(LEAST_WAIT_S, min(MOST_WAIT_S, len(self.entries) * self.compute_s))
        if math.isinf(self.compute_s):
            return now - self._moved_at > PULL_PAUSE_S
        # What came need not be computed: that much time is won already.
        return waited_s > PULL_SLACK_S + self.compute_s * (self._at + PULL_SHARE * self.expected)
