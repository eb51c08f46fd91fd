"""NVIDIA Dynamo's KV router: a sum of prefill and decode blocks, with temperature 0."""

from collections import Counter

from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View, least

_HOST_CREDIT = 0.75


class DynamoKv(Policy):
    """`scale` weighs prefill against decode. A block is a block of the trace: both terms scale alike."""

    def __init__(self, setup: Setup, view: View, scale: float = 1.0) -> None:
        super().__init__(setup, view)
        self._scale = scale
        self._active: list[Counter[int]] = [Counter() for _ in range(setup.nodes)]
        """Prompt blocks of running requests, by node: what several share counts once."""
        self._others = [0] * setup.nodes
        """Blocks of running requests that no key covers: a prompt's last, partial one, and the replies."""

    def place(self, job: Job, now: float) -> int:
        block_tokens = self.setup.block_tokens
        keys = job.chain.keys
        costs = []
        for node, overlap in enumerate(self.view.matched(job, _HOST_CREDIT)):
            raw = (self.view.prefill_tokens[node] + job.prompt_tokens) / block_tokens
            active = self._active[node]
            new = sum(key not in active for key in keys) + 1
            decode = len(active) + self._others[node] + new
            costs.append(self._scale * max(0.0, raw - overlap) + decode)
        node = least(costs, self.chance)
        self._active[node].update(keys)
        self._others[node] += 1
        return node

    def finished(self, job: Job, node: int, now: float) -> None:
        active = self._active[node]
        for key in job.chain.keys:
            active[key] -= 1
            if not active[key]:
                del active[key]
        self._others[node] -= 1
