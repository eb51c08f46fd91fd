"""Policies that do not look at prompts."""

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least


class RoundRobin(Policy):
    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._next = -1

    def place(self, job: Job, now: float) -> int:
        self._next = (self._next + 1) % self.setup.nodes
        return self._next


class GlobalPoolRoundRobin(RoundRobin):
    """The bound: every node can use every other node's pages, at the cost of their transfer."""

    shared_cache = True


class Random(Policy):
    def place(self, job: Job, now: float) -> int:
        return self.chance.randrange(self.setup.nodes)


class LeastRequest(Policy):
    def place(self, job: Job, now: float) -> int:
        return least(self.view.in_flight, self.chance)


class PowerOfTwo(Policy):
    def place(self, job: Job, now: float) -> int:
        return power_of_two(self)


def power_of_two(policy: Policy) -> int:
    """Of two nodes at random, the one with fewer requests in flight."""
    nodes = policy.setup.nodes
    return least(policy.view.in_flight, policy.chance, policy.chance.sample(range(nodes), min(2, nodes)))
