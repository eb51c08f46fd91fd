"""What came of a run, and of several runs of one target."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from trunkline.agent.engine.emulated.profile import Profile
from trunkline.loadtest.fleet.watch import Watch


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run, or the medians of several. Seconds, bytes; None where there is nothing to measure."""

    requests_s: float
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    hit_ratio: float | None
    pages_held: float
    """Device pages of all agents that requests held at one moment, at most: shared ones count once."""
    pages_filled: float
    """The same, with those that are kept for later."""
    work_max_over_mean: float | None
    """Of the agents' work: prefill of what was not found, and decode."""
    all_busy_s: float | None
    """From when the first agent had something to compute until every one had; None: one never had."""
    router_cpu: float | None
    """Cores that the router's processes used in the mean."""
    router_peak_bytes: float | None
    client_cpu: float
    machine_cpu: float
    errors: float
    """Requests that failed, wrong answers among them."""
    unfinished: float
    checked: float
    """Answers that were compared with what they must be."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def outcome(summary: dict[str, Any], watch: Watch, profile: Profile) -> Outcome:
    """Of a run's summary, and of what was seen meanwhile."""
    firsts = watch.first_work()
    cpu_s = watch.front_cpu_s
    return Outcome(
        requests_s=summary["requests_s"],
        ttft_mean_s=summary["ttft_s"]["mean"],
        ttft_p50_s=summary["ttft_s"]["p50"],
        ttft_p99_s=summary["ttft_s"]["p99"],
        itl_p50_s=summary["itl_s"]["p50"],
        hit_ratio=summary["hit_ratio"],
        pages_held=watch.peak_pages(held=True),
        pages_filled=watch.peak_pages(held=False),
        work_max_over_mean=_imbalance(_work(watch, profile)),
        all_busy_s=_spread(firsts),
        router_cpu=None if cpu_s is None else cpu_s / watch.seconds,
        router_peak_bytes=watch.front_peak_bytes,
        client_cpu=summary["client_cpu"],
        machine_cpu=summary["machine_cpu"],
        errors=sum(summary["errors"].values()),
        unfinished=summary["unfinished"],
        checked=summary["checked"],
    )


def medians(outcomes: Sequence[Outcome]) -> Outcome:
    """Figure by figure; errors and checked answers are added up. None in all of them stays None."""
    rows = [each.json() for each in outcomes]
    merged: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        add_up = name in ("errors", "checked")
        merged[name] = None if not values else sum(values) if add_up else median(values)
    return Outcome(**merged)


def _work(watch: Watch, profile: Profile) -> list[float]:
    """Seconds of each agent, without the fixed part of its steps and without the attention of its prefill."""
    counters = (watch.grown(f"{name}_tokens_total") for name in ("prompt", "cached", "output"))
    return [
        profile.linear_s * (prompt - cached) + profile.decode_sequence_s * output
        for prompt, cached, output in zip(*counters, strict=True)
    ]


def _spread(firsts: Sequence[float | None]) -> float | None:
    known = [first for first in firsts if first is not None]
    return max(known) - min(known) if len(known) == len(firsts) else None


def _imbalance(work: Sequence[float]) -> float | None:
    return max(work) * len(work) / sum(work) if sum(work) else None
