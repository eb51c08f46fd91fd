"""A run in figures: one row per policy."""

import statistics
from dataclasses import asdict, dataclass
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.table import Table

from trunkline.loadtest.sim.cluster import Outcome
from trunkline.loadtest.sim.pooled import Pooled


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one run. Seconds and tokens; `work` is the engines' work without the fixed part of their steps."""

    trace: str
    policy: str
    hit_ratio: float
    """Of prompt tokens."""
    pooled_share: float
    """Hit tokens, as a share of what one cache of the fleet's total size finds."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_mean_s: float
    work_max_over_mean: float
    work_cv: float
    """Standard deviation over the nodes, divided by their mean."""
    tokens_per_s: float
    """Prompt and reply tokens, cached ones included, from the first arrival to the last token."""
    pulls: int
    pulled_share: float
    """Pulled tokens, as a share of prompt tokens."""
    vain_pulls: float
    """Share of the pulls that took longer than computing would have, or found no room."""
    promoted_share: float
    """Tokens from the host tier, as a share of prompt tokens."""
    evictions: int
    """Pages, of one block each, that left every tier of a node."""
    requests: int
    seconds: float

    @classmethod
    def of(cls, trace: str, policy: str, outcome: Outcome, ideal: Pooled) -> Self:
        ttft = sorted(outcome.ttft_s)
        mean_work = statistics.fmean(outcome.work_s)
        fetched = outcome.fetched
        return cls(
            trace=trace,
            policy=policy,
            hit_ratio=outcome.cached_tokens / outcome.prompt_tokens,
            pooled_share=outcome.cached_tokens / ideal.cached_tokens if ideal.cached_tokens else 1.0,
            ttft_mean_s=statistics.fmean(ttft),
            ttft_p50_s=quantile(ttft, 0.5),
            ttft_p90_s=quantile(ttft, 0.9),
            ttft_p99_s=quantile(ttft, 0.99),
            e2e_mean_s=statistics.fmean(outcome.e2e_s),
            work_max_over_mean=max(outcome.work_s) / mean_work if mean_work else 1.0,
            work_cv=statistics.pstdev(outcome.work_s) / mean_work if mean_work else 0.0,
            tokens_per_s=(outcome.prompt_tokens + outcome.output_tokens) / outcome.seconds if outcome.seconds else 0.0,
            pulls=fetched.pulls,
            pulled_share=fetched.pulled_tokens / outcome.prompt_tokens,
            vain_pulls=fetched.vain_pulls / fetched.pulls if fetched.pulls else 0.0,
            promoted_share=fetched.promoted_tokens / outcome.prompt_tokens,
            evictions=outcome.evicted_pages,
            requests=len(ttft),
            seconds=outcome.seconds,
        )

    def json(self) -> dict[str, object]:
        return asdict(self)


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that so many are not above."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(title: str, rows: list[Row]) -> Table:
    """The rows of one trace, in their order."""
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    result.add_column("policy", no_wrap=True)
    for name in (
        "hit %",
        "of pooled",
        "TTFT mean",
        "p50",
        "p90",
        "p99",
        "e2e mean",
        "max/mean",
        "CV",
        "tok/s",
        "pulls",
        "in vain",
        "evicted",
    ):
        result.add_column(name, justify="right")
    for row in rows:
        result.add_row(
            row.policy,
            f"{100 * row.hit_ratio:.2f}",
            f"{row.pooled_share:.3f}",
            f"{row.ttft_mean_s:.3f}",
            f"{row.ttft_p50_s:.3f}",
            f"{row.ttft_p90_s:.3f}",
            f"{row.ttft_p99_s:.3f}",
            f"{row.e2e_mean_s:.2f}",
            f"{row.work_max_over_mean:.3f}",
            f"{row.work_cv:.3f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.pulls:,}",
            f"{100 * row.vain_pulls:.1f} %" if row.pulls else "-",
            f"{row.evictions:,}",
        )
    return result
