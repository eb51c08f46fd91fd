"""What an agent tells Prometheus, read from the engine when it is scraped."""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from trunkline.agent.cache.counters import TierCounters
from trunkline.agent.engine.base import Engine, EngineStatus
from trunkline.agent.node import Node, State
from trunkline.agent.transfer import metrics as transfer
from trunkline.shared.metrics import agent as catalog
from trunkline.shared.names import Tier
from trunkline.shared.wire import Load


class AgentCollector(Collector):
    """`answers` counts HTTP answers by path and status."""

    def __init__(self, node: Node, answers: Counter[tuple[str, int]]) -> None:
        self._node = node
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        answers = sorted(self._answers.items())
        yield catalog.ANSWERS.by(((path, str(status)), count) for (path, status), count in answers)
        yield catalog.READY.of(self._node.state is State.READY)
        yield catalog.DRAINING.of(self._node.state is State.DRAINING)
        registration = self._node.registration
        yield catalog.REGISTERED.of(None if registration is None else registration.registered)
        if serving := self._node.serving:
            model = serving.engine.model.name
            yield catalog.INFO.by([((self._node.settings.node, model, version("trunkline")), 1)])
            load, status = serving.engine.load(), serving.engine.status()
            yield from _requests(load, status)
            yield from _steps(load, status)
            yield from _pages(load, status, serving.engine)
            yield from _eviction(status.tiers)
            yield from _moves(status.tiers)
            yield from _fetches(status.tiers)
            yield from _pulls(status.tiers)
            yield catalog.ORDERED.of(serving.orders.pulled_tokens)
            yield from _events(serving.events.stats())
            yield catalog.PINS_UNSAVED.of(self._node.pins is not None and self._node.pins.unsaved)
            if self._node.transfer is not None:
                yield from transfer.metrics(self._node.transfer, serving.engine.lender.leases)


def _requests(load: Load, status: EngineStatus) -> Iterator[Metric]:
    yield catalog.RUNNING.of(load.running)
    yield catalog.WAITING.of(load.waiting)
    yield catalog.BACKLOG.of(load.backlog_tokens)
    yield catalog.REQUESTS.of(load.requests)
    yield catalog.QUEUE.of(status.histograms.queue)
    yield catalog.PREFILL.of(status.histograms.prefill)
    yield catalog.PROMPT_TOKENS.of(load.prompt_tokens)
    yield catalog.CACHED_TOKENS.of(load.cached_tokens)
    yield catalog.OUTPUT_TOKENS.of(load.output_tokens)


def _steps(load: Load, status: EngineStatus) -> Iterator[Metric]:
    yield catalog.ALIVE.of(status.alive)
    yield catalog.PREFILL_RATE.of(load.prefill_rate)
    yield catalog.DECODE_RATE.of(load.decode_rate)
    yield catalog.UTILIZATION.of(load.utilization)
    yield catalog.STEPS.of(status.steps)
    yield catalog.STEP_TIME.by(((kind,), seconds) for kind, seconds in status.histograms.steps.items())
    yield catalog.STEP_SEQUENCES.of(status.histograms.sequences)
    yield catalog.STEP_TOKENS.of(status.histograms.tokens)
    yield catalog.PREEMPTIONS.of(status.preemptions)
    yield catalog.FAILED_STEPS.of(status.failed_steps)
    yield catalog.FAILED_CHECKS.of(status.failed_checks)
    yield catalog.LATE.of(status.late_s)


def _pages(load: Load, status: EngineStatus, engine: Engine) -> Iterator[Metric]:
    tiers = [(one.tier.name.lower(), one) for one in load.tiers]
    yield catalog.PAGES.by(
        ((name, state), getattr(one, state)) for name, one in tiers for state in catalog.PAGES_STATE.words
    )
    yield catalog.PAGE_BYTES.by(
        ((name,), engine.page_bytes if one.tier is Tier.DEVICE else status.tiers.page_bytes) for name, one in tiers
    )
    yield catalog.FRAGMENTATION.by(
        ((name,), 1.0 - one.longest_free / one.free if one.free else 0.0) for name, one in tiers
    )
    yield catalog.FOUND_TOKENS.by(((where,), count) for where, count in status.found_tokens.items())
    yield catalog.FALSE_HITS.of(load.false_hits)


def _eviction(tiers: TierCounters) -> Iterator[Metric]:
    yield catalog.EVICTED.by(tiers.gone.items())
    yield catalog.LEARNED.by(((tier,), leads) for tier, leads in tiers.learned.items())
    yield catalog.ADMISSION.by(((tier,), pages) for tier, pages in tiers.least_pages.items())
    yield catalog.PINNED.of(tiers.pinned_pages)
    yield catalog.CORE.of(tiers.core_pages)
    yield catalog.PROTECTED.of(tiers.protected_pages)


def _moves(tiers: TierCounters) -> Iterator[Metric]:
    routes = tiers.routes.items()
    yield catalog.MOVED.by((route, one.pages) for route, one in routes)
    yield catalog.MOVED_BYTES.by((route, one.pages * tiers.page_bytes) for route, one in routes)
    yield catalog.MOVE_TIME.by((route, one.seconds) for route, one in routes)
    yield catalog.BAD_MOVES.by((route, one.bad) for route, one in routes)
    yield catalog.MOVE_RATE.by((route, one.pages_per_s) for route, one in routes)
    yield catalog.PACED.of(tiers.paced_s)
    yield catalog.URGENT.of(tiers.urgent_pages)
    yield catalog.DROPPED.of(tiers.dropped_pages)
    yield catalog.DISK_FAILED.of(tiers.disk_failed)
    yield catalog.DISK_FAILURES.of(tiers.disk_failures)
    yield catalog.HOST_BYTES.of(tiers.host_bytes)
    yield catalog.HOST_HUGE.of(tiers.host_huge_bytes)
    yield catalog.HOST_PINNED.of(tiers.host_pinned)


def _fetches(tiers: TierCounters) -> Iterator[Metric]:
    yield catalog.FETCHES.of(tiers.fetches)
    yield catalog.LATE_FETCHES.of(tiers.late_fetches)
    yield catalog.WRONG_FETCHES.of(tiers.wrong_fetches)
    yield catalog.SKIPPED.of(tiers.skipped_pages)
    yield catalog.WRONG_SKIPS.of(tiers.wrong_skips)
    yield catalog.PRELOADED.of(tiers.preloaded_pages)
    yield catalog.PRELOADED_USED.of(tiers.preloaded_used_pages)


def _pulls(tiers: TierCounters) -> Iterator[Metric]:
    pulls = tiers.pulls
    yield catalog.PULLS.of(pulls.pulls)
    yield catalog.PULLS_UNANSWERED.of(pulls.unanswered)
    yield catalog.PULLS_ABANDONED.of(pulls.abandoned)
    yield catalog.PULLED.of(pulls.pages)
    yield catalog.PULLED_BAD.by(((reason,), pulls.bad.get(reason, 0)) for reason in catalog.LOST.words)


def _events(stats: dict[str, int]) -> Iterator[Metric]:
    yield catalog.EVENTS_KEYS.of(stats["keys"])
    yield catalog.EVENTS_KEPT.of(stats["kept_batches"])
    yield catalog.EVENTS_PENDING.of(stats["pending_keys"])
    yield catalog.EVENTS_BATCHES.of(stats["batches"])
    yield catalog.EVENTS_FOLDED.of(stats["folded"])
    yield catalog.EVENTS_OVERFLOWED.of(stats["overflowed"])
    yield catalog.EVENTS_DROPPED.of(stats["dropped_replies"])
    yield catalog.EVENTS_BAD.of(stats["bad_requests"])
