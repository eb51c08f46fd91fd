"""SGLang gateway's cache-aware policy, and its mode with exact events."""

import math

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.approx import AssumedCache, match_ratio
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least

_ABSOLUTE, _RELATIVE = 64, 1.5
_CACHE_THRESHOLD = 0.3
_TREE_TOKENS = 1 << 26


def imbalanced(view: View) -> bool:
    """Whether balance comes before the cache."""
    high, low = max(view.in_flight), min(view.in_flight)
    return high - low > _ABSOLUTE and high > _RELATIVE * low


class CacheAware(Policy):
    """An assumed tree per node; the 2^26 characters that each may hold are taken to be tokens."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._trees = [AssumedCache(_TREE_TOKENS // setup.block_tokens) for _ in range(setup.nodes)]

    def place(self, job: Job, now: float) -> int:
        node = self._choose(job)
        self._trees[node].insert(job)
        return node

    def _choose(self, job: Job) -> int:
        if not imbalanced(self.view):
            matched = [tree.matched(job) for tree in self._trees]
            if match_ratio(max(matched), job) > _CACHE_THRESHOLD:
                return least([-count for count in matched], self.chance)
        return least(self.view.in_flight, self.chance)


class CacheAwareEvent(Policy):
    """Most blocks by exact events, then lower load, then fewer blocks placed there so far."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._placed = [0] * setup.nodes

    def place(self, job: Job, now: float) -> int:
        node = self._choose(job)
        self._placed[node] += len(job.chain.keys)
        return node

    def _choose(self, job: Job) -> int:
        if not imbalanced(self.view):
            matched = self.view.matched(job)
            if (most := max(matched)) > 0:
                ranks = [
                    (self.view.in_flight[node], self._placed[node]) if count == most else (math.inf, 0)
                    for node, count in enumerate(matched)
                ]
                return min(range(len(ranks)), key=ranks.__getitem__)
        return least(self.view.in_flight, self.chance)
