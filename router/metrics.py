"""Counts on the hot path as plain numbers; turned into Prometheus metrics when they are scraped."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trunkline.router.admission.metrics import collect as collect_admission
from trunkline.router.discovery.metrics import collect as collect_endpoints
from trunkline.router.replicas.metrics import collect as collect_replicas
from trunkline.router.summaries import SummaryStatus

if TYPE_CHECKING:
    from trunkline.router.context import Context


class Histogram:
    """Counts of values up to each bound, as plain numbers."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        names = (*map(str, self._bounds), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True))


FIRST_BYTE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Counters:
    """Since the start. Used on the event loop only."""

    __slots__ = (
        "broken",
        "disconnects",
        "first_byte",
        "inflight",
        "matched_tokens",
        "placed_tokens",
        "responses",
        "retries",
    )

    def __init__(self) -> None:
        self.inflight = 0
        """Requests begun and not answered."""
        self.responses: dict[int, int] = {}
        """By HTTP status."""
        self.retries = 0
        """Tries that moved on to another node."""
        self.broken = 0
        """Responses that a node did not complete."""
        self.disconnects = 0
        """Clients that left before their response was complete."""
        self.placed_tokens = 0
        """Of prompts whose response began, estimated."""
        self.matched_tokens = 0
        """Of these, expected in the chosen node's cache."""
        self.first_byte = Histogram(FIRST_BYTE_BOUNDS)

    def began(self, seconds: float, matched: int, tokens: int) -> None:
        """A response began so long after the request was complete."""
        self.first_byte.add(seconds)
        self.matched_tokens += matched
        self.placed_tokens += tokens

    def responded(self, status: int) -> None:
        self.responses[status] = self.responses.get(status, 0) + 1


class RouterCollector(Collector):
    """Reads everything from a context at scrape time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        context = self._context
        counters, scheduler = context.counters, context.scheduler
        yield GaugeMetricFamily("trunkline_router_inflight", "Requests begun and not answered.", counters.inflight)
        responses = CounterMetricFamily("trunkline_router_responses", "Responses by HTTP status.", labels=["status"])
        for status, count in sorted(counters.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        accuracy = scheduler.accuracy
        for name, text, count in (
            ("retries", "Tries that moved on to another node.", counters.retries),
            ("broken_responses", "Responses that a node did not complete.", counters.broken),
            ("client_disconnects", "Clients that left before their response was complete.", counters.disconnects),
            ("prompt_tokens", "Prompt tokens of placed requests, estimated.", counters.placed_tokens),
            ("matched_tokens", "Of these, expected in the chosen node's cache.", counters.matched_tokens),
            (
                "checked_expected_tokens",
                "Expected to be cached, of requests that nodes reported.",
                accuracy.expected_tokens,
            ),
            ("checked_cached_tokens", "Really cached, of requests that nodes reported.", accuracy.real_tokens),
            ("checked_requests", "Requests that nodes reported.", accuracy.requests),
            ("blind_decisions", "Made while a candidate's summary was not known.", context.decisions.blind),
            ("false_promises", "Requests that found under three quarters of what was expected.", accuracy.short),
        ):
            yield CounterMetricFamily(f"trunkline_router_{name}", text, count)
        log = context.access_log  # Without one there are no samples.
        lines, dropped = (None, None) if log is None else (log.lines, log.dropped)
        for name, text, written in (
            ("lines", "Written to the access log.", lines),
            ("dropped_lines", "Not written to it: the disk is full, fails, or is too slow.", dropped),
        ):
            yield CounterMetricFamily(f"trunkline_router_access_log_{name}", text, written)
        for name, text, histogram in (
            ("first_byte", "From complete request to first byte.", counters.first_byte),
            ("decision", "From decoded request to ranking.", context.decisions.seconds),
        ):
            family = HistogramMetricFamily(f"trunkline_router_{name}_seconds", text)
            family.add_metric([], histogram.buckets(), histogram.sum)
            yield family
        claims = GaugeMetricFamily("trunkline_router_claimed_keys", "Keys claimed for nodes.", labels=["kind"])
        claims.add_metric(["burst"], scheduler.burst_claims.keys())
        claims.add_metric(["assumed"], scheduler.assumed_claims.keys())
        yield claims
        yield from collect_admission(context.admission)
        yield from self._nodes()
        yield from collect_replicas(context.replicas)
        yield from collect_endpoints(context.endpoints)

    def _nodes(self) -> Iterator[Metric]:
        scheduler = self._context.scheduler
        state = GaugeMetricFamily(
            "trunkline_router_node_state", "1 for the state a node is in.", labels=["node", "state"]
        )
        summary = GaugeMetricFamily(
            "trunkline_router_node_summary", "1 for the status of a node's summary.", labels=["node", "status"]
        )
        degraded = GaugeMetricFamily(
            "trunkline_router_node_degraded", "1 if a node's summary is not exact.", labels=["node"]
        )
        running = GaugeMetricFamily("trunkline_router_node_running", "Requests placed on a node.", labels=["node"])
        pending = GaugeMetricFamily(
            "trunkline_router_node_pending_tokens", "Uncached tokens placed and not answered.", labels=["node"]
        )
        report_age = GaugeMetricFamily(
            "trunkline_router_node_report_age_seconds", "Since a node last reported its load.", labels=["node"]
        )
        now = time.monotonic()
        stream = CounterMetricFamily(
            "trunkline_router_node_stream",
            "What happened on a node's event stream: batches, gaps, snapshots, digests that disagree.",
            labels=["node", "event"],
        )
        for node in self._context.registry.nodes:
            if node.follower is not None:
                for event, count in asdict(node.follower.summary.counters).items():
                    stream.add_metric([node.name, event], count)
            state.add_metric([node.name, node.state], 1)
            summary.add_metric([node.name, node.summary], 1)
            degraded.add_metric([node.name], node.summary is not SummaryStatus.EXACT)
            if node.load_at:
                report_age.add_metric([node.name], now - node.load_at)
            load = scheduler.load_of(node)
            running.add_metric([node.name], load.running)
            pending.add_metric([node.name], load.pending)
        yield from (state, summary, degraded, running, pending, report_age, stream)
        yield from self._index()

    def _index(self) -> Iterator[Metric]:
        stats = self._context.registry.index_stats()
        yield GaugeMetricFamily("trunkline_router_index_keys", "Distinct keys in all summaries.", stats["keys"])
        yield GaugeMetricFamily("trunkline_router_index_bytes", "Memory of the prefix index.", stats["bytes"])
        operations = CounterMetricFamily(
            "trunkline_router_index_operations", "Keys looked up and changed.", labels=["partition", "kind"]
        )
        for partition, (lookups, changes) in enumerate(self._context.registry.index_traffic()):
            operations.add_metric([str(partition), "lookups"], lookups)
            operations.add_metric([str(partition), "changes"], changes)
        yield operations
        yield CounterMetricFamily(
            "trunkline_router_index_dropped_keys", "Keys refused because the index is at its bound.", stats["dropped"]
        )
