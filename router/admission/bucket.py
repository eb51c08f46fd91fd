"""A limit on tokens per second."""


class TokenBucket:
    """Fills with `rate` tokens per second up to `burst`. What is taken is an estimate: the level may go below zero."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = self._level = burst
        self._at = now

    def take(self, tokens: float, now: float) -> float:
        """0.0 if they were taken; else nothing was, and they can be had in so many seconds.

        More than `burst` can be had when the bucket is full, and is owed afterwards.
        """
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        missing = min(tokens, self._burst) - self._level
        if missing > 0.0:
            return missing / self._rate
        self._level -= tokens
        return 0.0

    def give(self, tokens: float) -> None:
        """Fewer were used than were taken; negative: more."""
        self._level = min(self._burst, self._level + tokens)
