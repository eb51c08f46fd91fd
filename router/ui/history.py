"""The last hour of a router in steps of ten seconds: what the page's charts show."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from trunkline.router.counters import Counters, Outcome
from trunkline.router.scheduler.accuracy import Accuracy
from trunkline.router.ticker import Watched

STEP_S = 10.0
STEPS = 360
QUANTILES = (0.5, 0.9, 0.99)
_FAILED = (Outcome.OVERLOADED, Outcome.FAILED, Outcome.BROKEN)


class Step(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What happened in one step. Tokens of prompts."""

    at: float
    """Unix seconds of its end."""
    requests: int
    """Those that ended."""
    failed: int
    """Of these: overloaded, failed and broken ones."""
    ttft_s: tuple[float, ...] | None
    """Seconds to the first token of streams, at QUANTILES; None: no stream began."""
    placed: int
    """Of responses that began, estimated."""
    expected: int
    """Of these, expected in the chosen node's cache."""
    checked: int
    """Of the requests that nodes reported as finished."""
    cached: int
    """Of these, really found in a cache."""


class History(Watched):
    """Takes differences of the router's counters: requests cost nothing more for it. Used on the event loop only."""

    def __init__(
        self,
        counters: Counters,
        accuracy: Accuracy,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._counters = counters
        self._accuracy = accuracy
        self._clock = clock
        self._wall = wall
        self._before = self._totals()
        self.steps: deque[Step] = deque(maxlen=STEPS)
        """Oldest first."""
        self.deadline = clock() + STEP_S

    def expire(self) -> None:
        """A step is over."""
        self.deadline = self._clock() + STEP_S
        before, self._before = self._before, self._totals()
        (*sums, seconds), (*sums_before, seconds_before) = self._before, before
        requests, failed, placed, expected, checked, cached = map(int.__sub__, sums, sums_before)
        counts = list(map(int.__sub__, seconds, seconds_before))
        bounds = self._counters.ttft.bounds
        quantiles = tuple(quantile(counts, bounds, share) for share in QUANTILES) if any(counts) else None
        self.steps.append(Step(self._wall(), requests, failed, quantiles, placed, expected, checked, cached))

    def abandon(self) -> None:
        """Nothing of it needs an end."""

    def _totals(self) -> tuple[int, int, int, int, int, int, list[int]]:
        counters, accuracy = self._counters, self._accuracy
        return (
            sum(counters.outcomes.values()),
            sum(counters.outcomes[outcome] for outcome in _FAILED),
            counters.placed_tokens,
            counters.matched_tokens,
            accuracy.prompt_tokens,
            accuracy.real_tokens,
            counters.ttft.counts(),
        )


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float:
    """Of values that were counted up to each bound, and beyond the last; within a bucket they are taken as even.

    What is beyond the last bound counts as the last bound. There is at least one value.
    """
    rank, below = share * sum(counts), 0
    for count, low, high in zip(counts, (0.0, *bounds), bounds, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    return bounds[-1]
