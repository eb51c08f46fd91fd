"""Prometheus metrics of an agent, read from the engine when they are scraped."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trunkline.agent.cache.counters import TierCounters
from trunkline.agent.engine.base import EngineStatus
from trunkline.agent.node import Node, State
from trunkline.agent.transfer import metrics as transfer
from trunkline.shared.wire import Load

_STREAM_GAUGES = {
    "kept_batches": "Batches kept for replays",
    "pending_keys": "Keys that wait for the next batch",
    "keys": "Keys published and not removed",
}
_STREAM_COUNTERS = {
    "batches": "Batches numbered",
    "folded": "Times that too much was pending, so that followers must take a snapshot",
    "overflowed": "Keys beyond the bound of what is published",
    "dropped_replies": "Answers to followers that did not take them",
    "bad_requests": "Requests of followers that did not decode",
}


class AgentCollector(Collector):
    """`answers` counts HTTP answers by path and status."""

    def __init__(self, node: Node, answers: Counter[tuple[str, int]]) -> None:
        self._node = node
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily("trunkline_agent_http_answers", "HTTP answers", labels=("path", "status"))
        for (path, status), count in sorted(self._answers.items()):
            answers.add_metric((path, str(status)), count)
        yield answers
        yield _gauge("ready", "1 while requests are taken", float(self._node.state is State.READY))
        registration = self._node.registration
        registered = None if registration is None else float(registration.registered)
        yield GaugeMetricFamily("trunkline_agent_registered", "1 while the lease is renewed", registered)
        if serving := self._node.serving:
            yield from _of_load(serving.engine.load())
            yield from _of_status(serving.engine.status())
            yield _counter("ordered_tokens", "Tokens pulled by order of a router", serving.orders.pulled_tokens)
            stats = serving.events.stats()
            for name, text in _STREAM_GAUGES.items():
                yield _gauge(f"events_{name}", text, stats[name])
            for name, text in _STREAM_COUNTERS.items():
                yield _counter(f"events_{name}", text, stats[name])
            if self._node.transfer is not None:
                yield from transfer.metrics(self._node.transfer, serving.engine.lender.leases)


def _of_load(load: Load) -> Iterator[Metric]:
    yield _gauge("running", "Sequences in the batch", load.running)
    yield _gauge("waiting", "Sequences accepted and not in the batch", load.waiting)
    yield _gauge("backlog_tokens", "Prompt tokens accepted, not cached and not yet computed", load.backlog_tokens)
    yield _gauge("prefill_tokens_per_second", "Prompt tokens computed, smoothed", load.prefill_rate)
    yield _gauge("decode_tokens_per_second", "Tokens generated, smoothed", load.decode_rate)
    yield _gauge("utilization", "Share of time in which a step was running", load.utilization)
    yield _counter("requests", "Sequences finished", load.requests)
    yield _counter("prompt_tokens", "Prompt tokens of finished sequences", load.prompt_tokens)
    yield _counter("cached_tokens", "Prompt tokens whose KV was reused", load.cached_tokens)
    yield _counter("output_tokens", "Tokens generated", load.output_tokens)
    yield _counter("false_hits", "Page keys that matched other tokens", load.false_hits)
    pages = GaugeMetricFamily("trunkline_agent_pages", "KV pages", labels=("tier", "state"))
    for tier in load.tiers:
        for state in ("free", "resident", "in_flight", "cached", "leased", "total"):
            pages.add_metric((tier.tier.name.lower(), state), getattr(tier, state))
    yield pages
    pieces = GaugeMetricFamily(
        "trunkline_agent_fragmentation", "1 - the longest run of free pages / free pages", labels=("tier",)
    )
    for tier in load.tiers:
        pieces.add_metric((tier.tier.name.lower(),), 1.0 - tier.longest_free / tier.free if tier.free else 0.0)
    yield pieces


def _of_status(status: EngineStatus) -> Iterator[Metric]:
    yield _gauge("engine_alive", "1 while the engine steps", float(status.alive))
    yield _counter("steps", "Model steps", status.steps)
    yield _counter("preemptions", "Sequences that gave their pages to an older one", status.preemptions)
    yield _counter("failed_steps", "Steps that raised", status.failed_steps)
    yield _counter("failed_checks", "Idle checks that found pages unaccounted for", status.failed_checks)
    yield _counter("late_seconds", "Time by which an emulated engine's steps ended late, summed", status.late_s)
    yield from _of_tiers(status.tiers)
    yield from _of_eviction(status.tiers)


def _of_tiers(tiers: TierCounters) -> Iterator[Metric]:
    labels = ("source", "target")
    moved = CounterMetricFamily("trunkline_agent_moved_pages", "Pages copied between tiers", labels=labels)
    bad = CounterMetricFamily("trunkline_agent_bad_moves", "Pages not copied as they should", labels=labels)
    speed = GaugeMetricFamily("trunkline_agent_move_pages_per_second", "While copying", labels=labels)
    for route, counters in tiers.routes.items():
        moved.add_metric(route, counters.pages)
        bad.add_metric(route, counters.bad)
        speed.add_metric(route, counters.pages_per_s)
    yield from (moved, bad, speed)
    yield _counter("fetches", "Requests for which pages were brought back from a lower tier", tiers.fetches)
    yield _counter("late_fetches", "Fetches that were given up", tiers.late_fetches)
    yield _counter("wrong_fetches", "Fetches that took longer than computing what came", tiers.wrong_fetches)
    yield _counter("skipped_pages", "Pages in lower tiers that were quicker to compute", tiers.skipped_pages)
    yield _counter("wrong_skips", "Requests that computed what would have come sooner", tiers.wrong_skips)
    yield _counter("preloaded_pages", "Pages brought back from the disk on a guess", tiers.preloaded_pages)
    yield _counter("preloaded_used_pages", "Of these, those there when asked for", tiers.preloaded_used_pages)
    yield _counter("dropped_pages", "Pages on disk that were damaged, and what hung on them", tiers.dropped_pages)
    yield _gauge("disk_failed", "1 while memory has taken the disk's place", float(tiers.disk_failed))
    yield _counter("disk_failures", "Times that the disk failed", tiers.disk_failures)
    pulls = tiers.pulls
    yield _counter("pulls", "Times that another node was asked for pages", pulls.pulls)
    yield _counter("unanswered_pulls", "Of these, not answered in time", pulls.unanswered)
    yield _counter("abandoned_pulls", "Of these, left since computing had become quicker", pulls.abandoned)
    yield _counter("pulled_pages", "Pages that came from other nodes", pulls.pages)
    lost = CounterMetricFamily("trunkline_agent_bad_pulled_pages", "Pages that did not come", labels=("reason",))
    for reason in ("changed", "damaged", "absent", "lost"):
        lost.add_metric((reason,), pulls.bad.get(reason, 0))
    yield lost
    yield _gauge("host_bytes", "Memory of the host tier", tiers.host_bytes)
    yield _gauge("host_huge_bytes", "Of it, in huge pages", tiers.host_huge_bytes)
    yield _gauge("host_pinned", "1 if a GPU may copy from and to it by itself", float(tiers.host_pinned))
    yield _counter("urgent_pages", "Pages copied downwards while a request waited for room", tiers.urgent_pages)


def _of_eviction(tiers: TierCounters) -> Iterator[Metric]:
    gone = CounterMetricFamily("trunkline_agent_evicted_pages", "Pages that left a tier", labels=("tier", "reason"))
    for where, count in tiers.gone.items():
        gone.add_metric(where, count)
    learned = GaugeMetricFamily("trunkline_agent_eviction_learned", "1: the learned order leads", labels=("tier",))
    for tier, leads in tiers.learned.items():
        learned.add_metric((tier,), float(leads))
    least = GaugeMetricFamily("trunkline_agent_admission_pages", "Of the shortest segment admitted", labels=("tier",))
    for tier, pages in tiers.least_pages.items():
        least.add_metric((tier,), pages)
    yield from (gone, learned, least)
    yield _gauge("pinned_pages", "Pages that are pinned, there or not", tiers.pinned_pages)
    yield _gauge("core_pages", "Pages of the beginning that nearly all requests share", tiers.core_pages)
    yield _gauge("protected_pages", "Pages that stay while others can go, there or not", tiers.protected_pages)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"trunkline_agent_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"trunkline_agent_{name}", text, value=value)
