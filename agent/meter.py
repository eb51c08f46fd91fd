"""Rates of what just happened."""

import math


class Meter:
    """Amount per second over the last `window_s` seconds of whatever time it is told of, exponentially weighted."""

    __slots__ = ("_amount", "_seconds", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """`amount` happened in `seconds`."""
        keep = math.exp(-seconds / self._window_s)
        self._amount = self._amount * keep + amount
        self._seconds = self._seconds * keep + seconds

    @property
    def rate(self) -> float:
        """Per second; 0 before anything was told."""
        return self._amount / self._seconds if self._seconds else 0.0
