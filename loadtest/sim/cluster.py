"""The simulation: a fleet of modelled nodes behind one router that follows a policy, and the order of events.

arrival -> policy.place -> node queue -> steps -> first token, last token (the router sees them at once)
                                           └-> KV events, outcomes and load, which arrive `report_delay` later
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import msgspec

from trunkline.agent.cache.chain import Chain
from trunkline.agent.events import HEARTBEAT_S
from trunkline.loadtest.sim import events
from trunkline.loadtest.sim.events import Change, EventLog
from trunkline.loadtest.sim.fetch import Fetched, Fetcher
from trunkline.loadtest.sim.job import Job
from trunkline.loadtest.sim.node import EngineModel
from trunkline.loadtest.sim.policies import POLICIES, Policy, Setup, View
from trunkline.loadtest.sim.policies.trunkline import NAMESPACE
from trunkline.loadtest.sim.pooled import serve
from trunkline.loadtest.sim.tiers import open_cache
from trunkline.loadtest.sim.trace import Record, Trace
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import Finished, Load

_NEVER = -1.0


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
    """Gone from every tier of a node."""
    fetched: Fetched = field(default_factory=Fetched)
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
        pages, host_pages = setup.cache_tokens // setup.block_tokens, setup.host_tokens // setup.block_tokens
        if self._policy.shared_cache:
            pages, host_pages = pages * setup.nodes, host_pages * setup.nodes
        self._logs = [EventLog() for _ in nodes]
        page_s = setup.block_tokens * setup.profile.kv_bytes / setup.profile.host_bytes_s
        self._now = 0.0
        self._tiered = host_pages > 0
        opened = [
            open_cache(pages, host_pages, log, page_s, lambda: self._now)
            for log in (self._logs[:1] if self._policy.shared_cache else self._logs)
        ]
        self._caches = opened * (setup.nodes // len(opened))
        profiles = [setup.profile.scaled(setup.slow), *[setup.profile] * (setup.nodes - 1)]
        self._engines = [
            EngineModel(profile, cache, setup.block_tokens, setup.patience)
            for profile, cache in zip(profiles, self._caches, strict=True)
        ]
        self._fetcher = Fetcher(
            setup,
            self._caches,
            self._engines,
            later=self._at,
            changed=self._plan,
            shared=self._policy.shared_cache,
        )
        self._links_due = math.inf
        self._under_way: set[int] = set()
        """Requests that have arrived and not ended."""
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._steps = [0 for _ in nodes]
        """Number of the step that each node has on the agenda; older entries are void."""
        self._wakes = [engine.wake for engine in self._engines]
        self._outcome = Outcome(requests=[0 for _ in nodes], fetched=self._fetcher.totals)

    def warm(self, node: int, records: Iterable[Record]) -> None:
        """Before the run: the node has served these, and the router knows."""
        for record in records:
            serve(self._caches[node], record, self._setup.block_tokens)
        events.apply(self._logs[node].take(), node, self._view.index)

    def run(self, progress: Callable[[], None] = lambda: None) -> Outcome:
        """Every request to its end. `progress` is called once for each."""
        for node in range(self._setup.nodes):
            self._at(HEARTBEAT_S * node / self._setup.nodes, partial(self._beat, node))
        arrivals: Iterator[tuple[int, Record]] = enumerate(self._trace.records)
        following = next(arrivals, None)
        now = 0.0
        while following is not None or self._under_way:
            if following is not None:
                arrival = following[1].arrival * self._stretch
                if not self._agenda or arrival <= self._agenda[0][0]:
                    now = self._now = arrival
                    self._arrive(*following, now)
                    progress()
                    following = next(arrivals, None)
                    self._watch()
                    continue
            now, _, call = heapq.heappop(self._agenda)
            self._now = now
            call(now)
            self._watch()
        return self._end(now)

    def _arrive(self, index: int, record: Record, now: float) -> None:
        job = self._job(index, record, now)
        self._send(job, self._policy.place(job, now), now)

    def _job(self, index: int, record: Record, now: float) -> Job:
        chain = Chain(NAMESPACE, record.page_tokens(self._setup.block_tokens))
        output_tokens = record.output_tokens if self._setup.profile.replies else 1
        return Job(index, chain, record.prompt_tokens, output_tokens, now, record.session)

    def _send(self, job: Job, node: int, now: float) -> None:
        self._under_way.add(job.index)
        self._outcome.requests[node] += 1
        self._view.in_flight[node] += 1
        self._view.prefill_tokens[node] += job.prompt_tokens
        self._fetcher.submit(node, job, now)

    def _watch(self) -> None:
        """Has the agenda hold the next change of what is on the links."""
        due = self._fetcher.links.due
        if due != self._links_due:
            self._links_due = due
            if due != math.inf:
                self._at(due, self._fetch)

    def _fetch(self, now: float) -> None:
        if now == self._links_due:
            self._links_due = math.inf  # The next change may be due at this very time.
            self._fetcher.advance(now)

    def _beat(self, node: int, now: float) -> None:
        if self._tiered:
            self._caches[node].turn()
            self._engines[node].freed(now)  # what had to wait until its pages were copied
            self._plan(node)
        self._tell(node, [], [], now)
        self._at(now + HEARTBEAT_S, partial(self._beat, node))

    def _step(self, node: int, number: int, now: float) -> None:
        if number != self._steps[node]:
            return
        engine = self._engines[node]
        # What was logged when the step was planned is true now that it has been computed.
        changes = self._logs[node].take()
        if self._tiered:
            self._caches[node].turn()
        engine.step()
        self._wakes[node] = _NEVER
        self._plan(node)
        for job in engine.begun:
            self._view.prefill_tokens[node] -= job.prompt_tokens
            self._policy.begun(job, node, now)
        for job in engine.finished:
            self._view.in_flight[node] -= 1
            self._policy.finished(job, node, now)
            self._under_way.remove(job.index)
            self._count(job)
        if changes or engine.begun or engine.finished:
            self._tell(node, changes, engine.finished, now)

    def _plan(self, node: int) -> None:
        wake = self._engines[node].wake
        if wake != self._wakes[node]:
            self._wakes[node] = wake
            self._steps[node] += 1
            if wake != math.inf:
                self._at(wake, partial(self._step, node, self._steps[node]))

    def _tell(self, node: int, changes: list[Change], finished: list[Job], now: float) -> None:
        outcomes = [
            Finished(
                str(job.index),
                len(job.chain.tokens),
                self._pseudo(job.cached),
                job.output_tokens,
                job.started_at - job.arrived_at,
                job.first_token_at - job.started_at,
                self._pseudo(job.promoted),
                job.fetch_s if job.promoted else 0.0,
                self._pseudo(job.pulled),
                job.fetch_s if job.pulled else 0.0,
            )
            for job in finished
        ]
        delivery = _Delivery(node, changes, outcomes, self._load(node, now))
        self._at(now + self._delay, partial(self._deliver, delivery))

    def _load(self, node: int, now: float) -> Load:
        load = self._engines[node].load(now)
        setup = self._setup
        if not self._tiered and setup.link_bytes_s is None:
            return load
        tokens_s = PAGE_TOKENS / setup.block_tokens / setup.profile.kv_bytes
        coming, going = self._fetcher.left(node, now)
        return msgspec.structs.replace(
            load,
            promote_rate=setup.profile.host_bytes_s * tokens_s if self._tiered else 0.0,
            link_rate=(setup.link_bytes_s or 0.0) * tokens_s,
            pulling_tokens=self._pseudo(coming),
            lending_tokens=self._pseudo(going),
        )

    def _pseudo(self, tokens: float) -> int:
        """As the router counts them: PAGE_TOKENS to a block."""
        return int(tokens * PAGE_TOKENS / self._setup.block_tokens)

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

    def _at(self, when: float, call: Callable[[float], None]) -> None:
        """`call` gets the time."""
        heapq.heappush(self._agenda, (when, next(self._order), call))
