"""What a histogram counts in: plain numbers, since this is done on hot paths."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """Counts of values up to each bound. One thread adds; any may look, and sees each number as it is then."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend."""
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def extend(self, counts: Sequence[int], total: float) -> None:
        """What was counted elsewhere within the same bounds, one count more than there are of them."""
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self.sum += total

    @property
    def count(self) -> int:
        return sum(self._counts)

    def counts(self) -> list[int]:
        """Of each bucket by itself, the one beyond the bounds last."""
        return list(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        names = (*map(str, self.bounds), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True))
