"""Ray Serve's prefix-aware router: the matched replica unless queues differ too much."""

import math

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.approx import AssumedCache, match_ratio
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least
from trunkline.loadtest.sim.policies.plain import power_of_two

_MATCH_THRESHOLD = 0.1
_TREE_TOKENS = 1 << 26


class RayPrefix(Policy):
    """`imbalance`: difference of queue lengths above which two random replicas are compared instead."""

    def __init__(self, setup: Setup, view: View, imbalance: float = math.inf) -> None:
        super().__init__(setup, view)
        self._imbalance = imbalance
        self._trees = [AssumedCache(_TREE_TOKENS // setup.block_tokens) for _ in range(setup.nodes)]

    def place(self, job: Job, now: float) -> int:
        node = self._choose(job)
        self._trees[node].insert(job)
        return node

    def _choose(self, job: Job) -> int:
        if max(self.view.in_flight) - min(self.view.in_flight) > self._imbalance:
            return power_of_two(self)
        matched = [tree.matched(job) for tree in self._trees]
        longest = max(matched)
        if match_ratio(longest, job) < _MATCH_THRESHOLD:
            return least([len(tree) for tree in self._trees], self.chance)
        return least(self.view.in_flight, self.chance, [node for node, count in enumerate(matched) if count == longest])
