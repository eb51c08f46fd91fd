"""Packs single changes into events, in order, and keeps account of what stands published."""

import struct

from trunkline.agent.cache.sink import SummarySink
from trunkline.shared.names import Tier


class Publisher:
    """Collects the changes of one call of the cache; neighbours of a kind make one event.

    `count` and `xor` digest the keys that stand published, so that a check needs no second copy of them.
    """

    def __init__(self, sink: SummarySink, tier: Tier) -> None:
        self.count = 0
        self.xor = 0
        self._sink = sink
        self._tier = tier
        # At most one of stored and removed is not empty: the order among changes is kept.
        self._stored: list[int] = []
        self._depths: list[int] = []
        self._removed: list[int] = []

    def stored(self, key: int, depth: int) -> None:
        if self._removed:
            self.flush()
        self._stored.append(key)
        self._depths.append(depth)
        self.count += 1
        self.xor ^= key

    def removed(self, key: int) -> None:
        if self._stored:
            self.flush()
        self._removed.append(key)
        self.count -= 1
        self.xor ^= key

    def cleared(self) -> None:
        self.flush()
        self._sink.cleared()
        self.count = self.xor = 0

    def flush(self) -> None:
        """Hands over what was collected."""
        if self._stored:
            count = len(self._stored)
            keys, depths = struct.pack(f"<{count}Q", *self._stored), struct.pack(f"<{count}I", *self._depths)
            self._stored.clear()
            self._depths.clear()
            self._sink.stored(keys, depths, self._tier)
        elif self._removed:
            keys = struct.pack(f"<{len(self._removed)}Q", *self._removed)
            self._removed.clear()
            self._sink.removed(keys)
