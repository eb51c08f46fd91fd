"""What a router tells Prometheus, read from its parts when it is scraped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from trunkline.router.admission.metrics import collect as collect_admission
from trunkline.router.discovery.metrics import collect as collect_listing
from trunkline.router.replicas.metrics import collect as collect_replicas
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.metrics import router as catalog

if TYPE_CHECKING:
    from trunkline.router.context import Context


class RouterCollector(Collector):
    """Reads everything from a context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._decisions()
        yield from collect_admission(self._context.admission)
        yield from self._nodes()
        yield from self._index()
        yield from self._handovers()
        yield from collect_replicas(self._context.replicas)
        yield from collect_listing(self._context.listing)

    def _requests(self) -> Iterator[Metric]:
        counters, log = self._context.counters, self._context.access_log
        yield catalog.INFLIGHT.of(counters.inflight)
        yield catalog.REQUESTS.by(((outcome,), count) for outcome, count in counters.outcomes.items())
        yield catalog.RESPONSES.by(((str(status),), count) for status, count in sorted(counters.responses.items()))
        yield catalog.TTFT.of(counters.ttft)
        yield catalog.ITL.of(self._context.splices.gaps())
        yield catalog.E2E.of(counters.e2e)
        yield catalog.RETRIES.of(counters.retries)
        yield catalog.STARVED.of(counters.starved)
        yield catalog.BROKEN.of(counters.broken)
        yield catalog.PROMPT_TOKENS.of(counters.placed_tokens)
        yield catalog.MATCHED_TOKENS.of(counters.matched_tokens)
        yield catalog.LOG_LINES.of(log.lines if log else None)
        yield catalog.LOG_DROPPED.of(log.dropped if log else None)

    def _decisions(self) -> Iterator[Metric]:
        scheduler, decisions = self._context.scheduler, self._context.decisions
        accuracy = scheduler.accuracy
        yield catalog.DECISION.of(decisions.seconds)
        yield catalog.BLIND.of(decisions.blind)
        yield catalog.CHECKED_REQUESTS.of(accuracy.requests)
        yield catalog.CHECKED_EXPECTED.of(accuracy.expected_tokens)
        yield catalog.CHECKED_CACHED.of(accuracy.real_tokens)
        yield catalog.FALSE_PROMISES.of(accuracy.short)
        claims = {"burst": scheduler.burst_claims, "assumed": scheduler.assumed_claims}
        yield catalog.CLAIMED_KEYS.by(((kind,), kept.keys()) for kind, kept in claims.items())

    def _nodes(self) -> Iterator[Metric]:
        scheduler, nodes, now = self._context.scheduler, self._context.registry.nodes, time.monotonic()
        loads = [(node.name, scheduler.load_of(node)) for node in nodes]
        yield catalog.NODE_STATE.by(((node.name, node.state), 1) for node in nodes)
        yield catalog.NODE_SUMMARY.by(((node.name, node.summary), 1) for node in nodes)
        yield catalog.NODE_DEGRADED.by(((node.name,), node.summary is not SummaryStatus.EXACT) for node in nodes)
        yield catalog.NODE_REPORT_AGE.by(((node.name,), now - node.load_at) for node in nodes if node.load_at)
        yield catalog.NODE_RUNNING.by(((name,), load.running) for name, load in loads)
        yield catalog.NODE_PENDING.by(((name,), load.pending) for name, load in loads)
        yield catalog.NODE_STREAM.by(
            ((node.name, event), count)
            for node in nodes
            if node.follower is not None
            for event, count in asdict(node.follower.summary.counters).items()
        )

    def _index(self) -> Iterator[Metric]:
        stats = self._context.registry.index_stats()
        yield catalog.INDEX_KEYS.of(stats["keys"])
        yield catalog.INDEX_BYTES.of(stats["bytes"])
        yield catalog.INDEX_OPERATIONS.by(
            ((str(partition), kind), count)
            for partition, counts in enumerate(self._context.registry.index_traffic())
            for kind, count in zip(("lookups", "changes"), counts, strict=True)
        )
        yield catalog.INDEX_DROPPED.of(stats["dropped"])

    def _handovers(self) -> Iterator[Metric]:
        handovers = self._context.handovers
        outcomes = {"handed": handovers.handed, "failed": handovers.failed}
        yield catalog.HANDED.by(((outcome,), count) for outcome, count in outcomes.items())
        yield catalog.HANDED_TOKENS.of(handovers.handed_tokens)
