"""How fast a node brings pages from its lower tiers to the device, learned from what it measures.

Seconds per token. A report is taken as no more than SURPRISE times what was expected, no less than its inverse, and
moves what is known by a quarter of the way: a single one, however wrong, changes little.
"""

from trunkline.shared.wire import LEAST_RATE

_SURPRISE = 2.0
_STEP = 0.25


class Bus:
    """Of one node."""

    __slots__ = ("disk_s", "host_s")

    def __init__(self, host_rate: float, disk_rate: float) -> None:
        """Tokens per second, until the node says better."""
        self.host_s = 1.0 / host_rate
        """From the host tier."""
        self.disk_s = 1.0 / disk_rate
        """From disk, by way of the host tier."""

    def report(self, host_rate: float, disk_rate: float) -> None:
        """What the node measured, in tokens per second; 0: nothing yet."""
        if host_rate >= LEAST_RATE:
            self.host_s = _learned(self.host_s, 1.0 / host_rate)
        if disk_rate >= LEAST_RATE:
            self.disk_s = _learned(self.disk_s, 1.0 / disk_rate + self.host_s)


def _learned(known: float, seen: float) -> float:
    return known + _STEP * (min(max(seen, known / _SURPRISE), known * _SURPRISE) - known)
