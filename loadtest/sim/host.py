"""The host tier of a modelled node: what the device evicts, until it is needed again or is the longest there."""

from array import array
from collections.abc import Iterable
from itertools import islice

from trunkline.agent.cache.sink import SummarySink
from trunkline.shared.names import Tier
from trunkline.shared.wire import TierLoad


class HostTier:
    """A `SummarySink` between a `PageCache` and whoever listens to it. A page is in one of the two tiers.

    The device evicts children before their parents, so the longest-held page never has a child here: the two tiers
    together stay prefix-closed.
    """

    def __init__(self, pages: int, sink: SummarySink) -> None:
        self._pages = pages
        self._sink = sink
        self._held: dict[int, None] = {}
        """Keys, those that came first at the front."""

    def run(self, keys: Iterable[int]) -> int:
        """How many of the keys, from the first on, are here without a gap."""
        count = 0
        for key in keys:
            if key not in self._held:
                break
            count += 1
        return count

    def stats(self) -> TierLoad:
        held = len(self._held)
        return TierLoad(Tier.HOST, self._pages, self._pages - held, held, 0, cached=held)

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        for key in memoryview(keys).cast("Q"):
            self._held.pop(key, None)
        self._sink.stored(keys, depths, tier)

    def moved(self, keys: bytes, tier: Tier) -> None:
        """The device tier removes; where to is decided here."""

    def removed(self, keys: bytes) -> None:
        for key in memoryview(keys).cast("Q"):
            self._held[key] = None
        self._sink.moved(keys, Tier.HOST)
        if (over := len(self._held) - self._pages) > 0:
            gone = array("Q", islice(self._held, over))
            for key in gone:
                del self._held[key]
            self._sink.removed(gone.tobytes())

    def cleared(self) -> None:
        self._held.clear()
        self._sink.cleared()
