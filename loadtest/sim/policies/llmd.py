"""llm-d's scorers: a weighted sum of prefix, queue and memory scores, the highest wins."""

from collections.abc import Sequence

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.approx import AssumedCache, match_ratio
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least
from trunkline.shared.wire import Load

_LRU_TOKENS = 31_250 * 16
"""Of one pod: 31,250 blocks of vLLM's 16 tokens."""
_QUEUE_THRESHOLD = 128
_HOST_WEIGHT = 0.8


class LlmdPrecise(Policy):
    """Exact events: prefix 2, memory 1, queue 1."""

    def place(self, job: Job, now: float) -> int:
        queues = queue_scores([report.waiting for report in self.view.reports])
        scores = [
            2 * match_ratio(matched, job) + (1 - usage(report)) + queue
            for matched, report, queue in zip(
                self.view.matched(job, _HOST_WEIGHT), self.view.reports, queues, strict=True
            )
        ]
        return least([-score for score in scores], self.chance)


class LlmdApprox(Policy):
    """Assumed caches, filled on routing: prefix 1, load-aware 1."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._caches = [AssumedCache(max(1, _LRU_TOKENS // setup.block_tokens)) for _ in range(setup.nodes)]

    def place(self, job: Job, now: float) -> int:
        scores = [
            match_ratio(cache.matched(job), job) + 0.5 * max(0.0, 1 - report.waiting / _QUEUE_THRESHOLD)
            for cache, report in zip(self._caches, self.view.reports, strict=True)
        ]
        node = least([-score for score in scores], self.chance)
        self._caches[node].insert(job)
        return node


def queue_scores(waiting: Sequence[int]) -> list[float]:
    high, low = max(waiting), min(waiting)
    return [(high - count) / (high - low) if high > low else 1.0 for count in waiting]


def usage(report: Load) -> float:
    """Share of the node's pages that running requests hold."""
    device = next(iter(report.tiers), None)
    return (device.resident - device.cached) / device.total if device else 0.0
