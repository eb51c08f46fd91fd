"""What a routing policy is, and what it can know: a router's own account, and reports that come late."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.kernels.core import PrefixIndex
from trunkline.loadtest.sim.job import Job
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Finished, Load


@dataclass(frozen=True, slots=True)
class Setup:
    """The fleet that a policy routes for. Nodes are numbered from 0."""

    nodes: int
    profile: Profile
    cache_tokens: int
    """Of one node."""
    block_tokens: int
    seed: int
    patience: float = 0.0
    """Order of prefill on the nodes; see `agent/engine/order.py`."""
    host_tokens: int = 0
    """Of one node's host tier."""
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    """Of Trunkline's router, for tokens of the prompts."""
    link_bytes_s: float | None = None
    """Between nodes, of each one's link and in each direction; None: they do not pull from each other."""
    slow: float = 1.0
    """Node 0 takes so many times as long as the others to compute."""


class View:
    """What a router knows. Written by the simulation only."""

    def __init__(self, setup: Setup) -> None:
        nodes = setup.nodes
        self.in_flight = [0] * nodes
        """Requests placed and not finished, at once and exact: they all pass through the router."""
        self.prefill_tokens = [0] * nodes
        """Prompt tokens placed whose first token has not come, cached ones included."""
        self.reports = [Load()] * nodes
        """Last load report that has arrived."""
        self.index = PrefixIndex()
        """Which node holds which pages, from the events that have arrived."""

    def matched(self, job: Job, host_credit: float = 1.0) -> list[float]:
        """Leading blocks of the prompt that each node held, as far as events have arrived; `host_credit` for each one
        that is in its host tier."""
        matched = [0.0] * len(self.in_flight)
        flat = iter(memoryview(self.index.match(array("Q", job.chain.keys))).cast("I"))
        for node, device, host, _ in zip(flat, flat, flat, flat, strict=True):
            matched[node] = (device + host_credit * host) / PAGE_TOKENS
        return matched


class Policy:
    """Chooses a node for each request. The other methods tell it what happened, at once; the late ones say so."""

    shared_cache = False
    """Whether all nodes share one pool of pages."""

    def __init__(self, setup: Setup, view: View) -> None:
        self.setup = setup
        self.view = view
        self.chance = random.Random(setup.seed)

    def place(self, job: Job, now: float) -> int:
        """The node. The request is sent there at once. `job.pull_from` may be set to another node, which holds more."""
        raise NotImplementedError

    def begun(self, job: Job, node: int, now: float) -> None:
        """The first token came."""

    def finished(self, job: Job, node: int, now: float) -> None:
        """The last token came."""

    def reported(self, node: int, load: Load, now: float) -> None:
        """A load report arrived, late."""

    def outcome(self, node: int, finished: Finished, now: float) -> None:
        """A node's report of what became of a request arrived, late."""


def least(values: Sequence[float], chance: random.Random, among: Sequence[int] | None = None) -> int:
    """Position of the smallest value, of equal ones any."""
    positions = range(len(values)) if among is None else among
    smallest = min(values[position] for position in positions)
    best = [position for position in positions if values[position] == smallest]
    return best[0] if len(best) == 1 else chance.choice(best)
