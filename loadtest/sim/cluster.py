"""The simulation: a fleet of modelled nodes behind one router that follows a policy, and the order of events.

arrival -> policy.place -> node queue -> steps -> first token, last token (the router sees them at once)
                                           └-> KV events, outcomes and load, which arrive `report_delay` later
"""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.loadtest.sim import events
from trunkline.loadtest.sim.events import Change, EventLog
from trunkline.loadtest.sim.node import EngineModel, Job
from trunkline.loadtest.sim.policies import POLICIES, Policy, Setup, View
from trunkline.loadtest.sim.policies.trunkline import NAMESPACE
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Finished, Load

HEARTBEAT_S = 0.25
"""Between load reports of a node with nothing else to tell, as in `agent/events.py`."""
_NEVER = -1.0


class _Kind(IntEnum):
    STEP = 0
    HEARTBEAT = 1
    DELIVERY = 2
    SUBMIT = 3


@dataclass(frozen=True, slots=True)
class _Delivery:
    """What a node tells the router at one moment."""

    node: int
    changes: list[Change]
    outcomes: list[Finished]
    load: Load


@dataclass(slots=True)
class Outcome:
    """What a run came to. Lists in order of completion; seconds, tokens, pages."""

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    work_s: list[float] = field(default_factory=list)
    """By node, without the fixed part of the steps."""
    requests: list[int] = field(default_factory=list)
    """By node."""
    evicted_pages: int = 0
    seconds: float = 0.0
    """From the first arrival to the last token."""


class Cluster:
    """One run. Arrival times are multiplied by `stretch`."""

    def __init__(
        self, trace: Trace, policy: str, setup: Setup, *, stretch: float = 1.0, report_delay: float = 0.05
    ) -> None:
        self._trace = trace
        self._stretch = stretch
        self._delay = report_delay
        self._setup = setup
        self._view = View(setup)
        self._policy: Policy = POLICIES[policy](setup, self._view)
        nodes = range(setup.nodes)
        pages = setup.cache_tokens // setup.block_tokens
        self._logs = [EventLog() for _ in nodes]
        if self._policy.shared_cache:
            self._caches = [PageCache(pages * setup.nodes, self._logs[0])] * setup.nodes
        else:
            self._caches = [PageCache(pages, log) for log in self._logs]
        self._engines = [
            EngineModel(setup.profile, cache, setup.block_tokens, setup.patience) for cache in self._caches
        ]
        self._network_free_at = [0.0 for _ in nodes]
        self._placed: dict[int, int] = {}
        """Node by request, while it is under way."""
        self._agenda: list[tuple[float, int, _Kind, int, object]] = []
        self._order = count()
        self._steps = [0 for _ in nodes]
        """Number of the step that each node has on the agenda; older entries are void."""
        self._wakes = [engine.wake for engine in self._engines]
        self._outcome = Outcome(requests=[0 for _ in nodes])

    def run(self, progress: Callable[[], None] = lambda: None) -> Outcome:
        """Every request to its end. `progress` is called once for each."""
        for node in range(self._setup.nodes):
            self._at(HEARTBEAT_S * node / self._setup.nodes, _Kind.HEARTBEAT, node)
        arrivals: Iterator[tuple[int, Record]] = enumerate(self._trace.records)
        following = next(arrivals, None)
        now = 0.0
        while following is not None or self._placed:
            if following is not None:
                arrival = following[1].arrival * self._stretch
                if not self._agenda or arrival <= self._agenda[0][0]:
                    now = arrival
                    self._arrive(*following, now)
                    progress()
                    following = next(arrivals, None)
                    continue
            now, _, kind, node, detail = heapq.heappop(self._agenda)
            if kind is _Kind.STEP:
                if detail == self._steps[node]:
                    self._step(node, now)
            elif kind is _Kind.HEARTBEAT:
                self._tell(node, [], [], now)
                self._at(now + HEARTBEAT_S, _Kind.HEARTBEAT, node)
            elif isinstance(detail, _Delivery):
                self._deliver(detail, now)
            elif isinstance(detail, Job):
                self._submit(node, detail, now)
        return self._end(now)

    def _arrive(self, index: int, record: Record, now: float) -> None:
        chain = Chain(NAMESPACE, record.page_tokens(self._setup.block_tokens))
        output_tokens = record.output_tokens if self._setup.profile.replies else 1
        job = Job(index, chain, record.prompt_tokens, output_tokens, now, record.session)
        node = self._policy.place(job, now)
        self._placed[index] = node
        self._outcome.requests[node] += 1
        self._view.in_flight[node] += 1
        self._view.prefill_tokens[node] += job.prompt_tokens
        if self._policy.shared_cache:
            self._at(self._transferred(node, job, now), _Kind.SUBMIT, node, job)
        else:
            self._submit(node, job, now)

    def _transferred(self, node: int, job: Job, now: float) -> float:
        """When a prompt's pages have come from the pool: one after the other, while the node computes other things."""
        pages = self._caches[node].match(job.chain)
        self._caches[node].release(pages)
        profile, nodes = self._setup.profile, self._setup.nodes
        size = len(pages) * self._setup.block_tokens * profile.kv_bytes * (nodes - 1) / nodes
        begin = max(now, self._network_free_at[node])
        self._network_free_at[node] = begin + size / profile.network_bytes_s
        return self._network_free_at[node]

    def _submit(self, node: int, job: Job, now: float) -> None:
        self._engines[node].submit(job, now)
        self._plan(node)

    def _step(self, node: int, now: float) -> None:
        engine = self._engines[node]
        # What was logged when the step was planned is true now that it has been computed.
        changes = self._logs[node].take()
        engine.step()
        self._wakes[node] = _NEVER
        self._plan(node)
        for job in engine.begun:
            self._view.prefill_tokens[node] -= job.prompt_tokens
            self._policy.begun(job, node, now)
        for job in engine.finished:
            self._view.in_flight[node] -= 1
            self._policy.finished(job, node, now)
            del self._placed[job.index]
            self._count(job)
        if changes or engine.begun or engine.finished:
            self._tell(node, changes, engine.finished, now)

    def _plan(self, node: int) -> None:
        wake = self._engines[node].wake
        if wake != self._wakes[node]:
            self._wakes[node] = wake
            self._steps[node] += 1
            if wake != math.inf:
                self._at(wake, _Kind.STEP, node, self._steps[node])

    def _tell(self, node: int, changes: list[Change], finished: list[Job], now: float) -> None:
        outcomes = [
            Finished(
                str(job.index),
                len(job.chain.tokens),
                job.cached * PAGE_TOKENS // self._setup.block_tokens,
                job.output_tokens,
                job.started_at - job.arrived_at,
                job.first_token_at - job.started_at,
            )
            for job in finished
        ]
        delivery = _Delivery(node, changes, outcomes, self._engines[node].load(now))
        self._at(now + self._delay, _Kind.DELIVERY, node, delivery)

    def _deliver(self, delivery: _Delivery, now: float) -> None:
        node = delivery.node
        events.apply(delivery.changes, node, self._view.index)
        self._view.reports[node] = delivery.load
        self._policy.reported(node, delivery.load, now)
        for finished in delivery.outcomes:
            self._policy.outcome(node, finished, now)

    def _count(self, job: Job) -> None:
        outcome = self._outcome
        outcome.ttft_s.append(job.first_token_at - job.arrived_at)
        outcome.e2e_s.append(job.finished_at - job.arrived_at)
        outcome.prompt_tokens += job.prompt_tokens
        outcome.cached_tokens += job.cached
        outcome.output_tokens += job.output_tokens

    def _end(self, now: float) -> Outcome:
        for cache in self._caches:
            cache.check()
        outcome = self._outcome
        outcome.seconds = now
        outcome.work_s = [engine.work_s for engine in self._engines]
        outcome.evicted_pages = sum(log.evicted for log in self._logs)
        return outcome

    def _at(self, when: float, kind: _Kind, node: int, detail: object = None) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), kind, node, detail))
