"""Trunkline's own scheduler, unchanged, under the virtual clock.

Prompts are page-token ids, 16 to a block, so every token count and rate that the scheduler sees is a pseudo one.
"""

from collections.abc import Mapping
from dataclasses import replace

from trunkline.kernels.core import PrefixIndex
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.policies.base import Policy, Setup, View
from trunkline.router.body import Prompt
from trunkline.router.node import Node, NodeState
from trunkline.router.scheduler.scheduler import Scheduler, Ticket
from trunkline.router.settings import SchedulerSettings
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Finished, Load, ServedModel

MODEL = "sim"
NAMESPACE = Namespace(fingerprint="sim", dtype="", layout="")


class VirtualNode(Node):
    """A node without sockets, whose events come from the simulation and are complete."""

    __slots__ = ()

    @property
    def summary(self) -> SummaryStatus:
        return SummaryStatus.EXACT


class Trunkline(Policy):
    def __init__(self, setup: Setup, view: View) -> None:
        super().__init__(setup, view)
        self._now = 0.0
        given = setup.scheduler
        scale = PAGE_TOKENS / setup.block_tokens
        settings = replace(
            given,
            prefill_rate=given.prefill_rate * scale,
            promote_rate=given.promote_rate * scale,
            disk_rate=given.disk_rate * scale,
            seed=setup.seed,
        )
        self.scheduler = self._open(view.index, settings)
        self._nodes = tuple(VirtualNode(index, f"http://node-{index}:80") for index in range(setup.nodes))
        models: Mapping[str, ServedModel | None] = {MODEL: ServedModel(MODEL, NAMESPACE, context=0)}
        for node in self._nodes:
            node.models = models
            node.state = NodeState.READY
        self._tickets: dict[int, Ticket] = {}

    def _open(self, index: PrefixIndex, settings: SchedulerSettings) -> Scheduler:
        return Scheduler(index, settings, clock=lambda: self._now)

    def place(self, job: Job, now: float) -> int:
        self._now = now
        placement = self.scheduler.place(Prompt(MODEL, job.chain.tokens), "", self._nodes)
        choice = placement.choice(0)
        job.pull_from = None if choice.pull_from is None else choice.pull_from.index
        self._tickets[job.index] = self.scheduler.start(choice, placement, str(job.index))
        return choice.node.index

    def begun(self, job: Job, node: int, now: float) -> None:
        self._now = now
        self.scheduler.begin(self._tickets[job.index])

    def finished(self, job: Job, node: int, now: float) -> None:
        self._now = now
        self.scheduler.finish(self._tickets.pop(job.index))

    def reported(self, node: int, load: Load, now: float) -> None:
        self._now = now
        self.scheduler.on_load(self._nodes[node], load)

    def outcome(self, node: int, finished: Finished, now: float) -> None:
        self._now = now
        self.scheduler.on_finished(self._nodes[node], finished)
