"""How fast what waits becomes less, for telling clients when to come back."""

from math import ceil, exp

_MEMORY_S = 10.0
_LEAST = 0.001
_SHORTEST_S, _LONGEST_S = 1.0, 600.0


class Drain:
    """Seconds of work that leave the queues per second, over about the last ten."""

    __slots__ = ("_at", "_since", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = self._since = 0.0

    def start(self, now: float) -> None:
        """Requests begin to wait; before, none did."""
        self._sum = 0.0
        self._at = self._since = now

    def add(self, seconds: float, now: float) -> None:
        self._sum = self._sum * exp((self._at - now) / _MEMORY_S) + seconds
        self._at = now

    def rate(self, now: float, nodes: int) -> float:
        """Of so many nodes: taken to be a second per second each while nothing is known, which fades."""
        known = 1.0 - exp((self._since - now) / _MEMORY_S)
        seen = self._sum * exp((self._at - now) / _MEMORY_S) / _MEMORY_S
        return max(_LEAST, seen + (1.0 - known) * nodes)


def retry_after(seconds: float) -> float:
    """Whole seconds, as the header wants them: never at once, and never never."""
    return float(ceil(min(max(seconds, _SHORTEST_S), _LONGEST_S)))
