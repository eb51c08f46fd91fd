"""AIBrix's prefix-aware routing: longest match among nodes that are not too busy."""

import math
import statistics
from collections import OrderedDict

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least

_IMBALANCE = 8
_ENTRIES = 200_000
"""Blocks that the index remembers; taken as blocks of the trace, which favours it."""
_TTL_S = 20 * 60.0


class AibrixPrefix(Policy):
    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._index: OrderedDict[int, dict[int, float]] = OrderedDict()
        """By block key: when each node was last sent a prompt with it."""

    def place(self, job: Job, now: float) -> int:
        node = self._choose(self._matched(job, now))
        for key in reversed(job.chain.keys):
            self._index.setdefault(key, {})[node] = now
            self._index.move_to_end(key)
        while len(self._index) > _ENTRIES:
            self._index.popitem(last=False)
        return node

    def _choose(self, matched: list[int]) -> int:
        running = self.view.in_flight
        nodes = range(len(running))
        if max(running) - min(running) > _IMBALANCE:
            return least(running, self.chance)
        bound = statistics.fmean(running) + statistics.pstdev(running)
        fit = [node for node in nodes if matched[node] and running[node] <= bound]
        if not fit:
            return least(running, self.chance)
        return min(fit, key=lambda node: (-matched[node], running[node]))

    def _matched(self, job: Job, now: float) -> list[int]:
        matched = [0] * self.setup.nodes
        alive = set(range(self.setup.nodes))
        for key in job.chain.keys:
            seen = self._index.get(key, {})
            alive = {node for node in alive if now - seen.get(node, -math.inf) <= _TTL_S}
            if not alive:
                break
            for node in alive:
                matched[node] += 1
        return matched
