"""Policies that send equal prompts, or one conversation, to one node by a hash."""

from bisect import bisect_right

from trunkline.kernels.core import hash64
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least

_VIRTUAL_NODES = 160
_LOAD_BOUND = 1.25


class ConsistentHash(Policy):
    """A ring with 160 points per node; the first 256 tokens decide, which lie in the first block."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._ring = sorted(
            (hash64(b"%d-%d" % (node, point), setup.seed), node)
            for node in range(setup.nodes)
            for point in range(_VIRTUAL_NODES)
        )

    def place(self, job: Job, now: float) -> int:
        return self._ring[self._position(job)][1]

    def _position(self, job: Job) -> int:
        # A prompt shorter than a block is like no other one.
        key = job.chain.keys[0] if job.chain.keys else hash64(b"%d" % job.index)
        return bisect_right(self._ring, (key, self.setup.nodes)) % len(self._ring)


class PrefixHashBounded(ConsistentHash):
    """The same ring, walked on to the first node with less than 1.25 times the mean load."""

    def place(self, job: Job, now: float) -> int:
        bound = _LOAD_BOUND * (sum(self.view.in_flight) + 1) / self.setup.nodes
        start = self._position(job)
        for step in range(len(self._ring)):
            node = self._ring[(start + step) % len(self._ring)][1]
            if self.view.in_flight[node] + 1 <= bound:
                return node
        return least(self.view.in_flight, self.chance)


class SessionSticky(Policy):
    """A conversation stays where it began, which is the least loaded node of that moment."""

    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._nodes: dict[int, int] = {}

    def place(self, job: Job, now: float) -> int:
        node = self._nodes.get(job.session)
        if node is None:
            node = self._nodes[job.session] = least(self.view.in_flight, self.chance)
        return node
