"""Preble: exploit a long match, explore by cost otherwise, over a window of three minutes."""

from collections import deque

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.approx import AssumedCache, match_ratio
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least

_WINDOW_S = 180.0
_EXPLOIT_RATIO = 0.5
_IMBALANCE = 1.5


class Preble(Policy):
    """Loads and costs are seconds of prefill. Replication: a node that is too busy passes a match on to the least
    busy one, which then holds the prefix too."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._blocks = setup.cache_tokens // setup.block_tokens
        self._caches = [AssumedCache(self._blocks) for _ in range(setup.nodes)]
        self._windows: list[deque[tuple[float, float]]] = [deque() for _ in range(setup.nodes)]
        """(when, prefill seconds) of what was placed lately, by node."""
        self._loads = [0.0] * setup.nodes

    def place(self, job: Job, now: float) -> int:
        for node, window in enumerate(self._windows):
            while window and window[0][0] < now - _WINDOW_S:
                self._loads[node] -= window.popleft()[1]
        matched = [cache.matched(job) for cache in self._caches]
        node = self._choose(job, matched)
        work = self._prefill_s(job, matched[node])
        self._windows[node].append((now, work))
        self._loads[node] += work
        self._caches[node].insert(job)
        return node

    def _choose(self, job: Job, matched: list[int]) -> int:
        loads, longest = self._loads, max(matched)
        if match_ratio(longest, job) > _EXPLOIT_RATIO:
            node = least(loads, self.chance, [node for node, count in enumerate(matched) if count == longest])
            if loads[node] <= _IMBALANCE * min(loads) or min(loads) == loads[node]:
                return node
            return least(loads, self.chance)
        costs = [
            loads[node] + self._eviction_s(job, node, matched[node]) + self._prefill_s(job, matched[node])
            for node in range(self.setup.nodes)
        ]
        return least(costs, self.chance)

    def _prefill_s(self, job: Job, matched: int) -> float:
        return self.setup.profile.prefill_s(
            min(matched * self.setup.block_tokens, job.prompt_tokens), job.prompt_tokens
        )

    def _eviction_s(self, job: Job, node: int, matched: int) -> float:
        """What is pushed out would have to be computed again: taken as linear in its tokens."""
        over = len(self._caches[node]) + len(job.chain.keys) - matched - self._blocks
        return max(0, over) * self.setup.block_tokens * self.setup.profile.linear_s
