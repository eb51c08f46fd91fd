"""Packs single changes into events, in order, and keeps account of what stands published."""

import struct
from functools import reduce
from operator import xor

from trunkline.agent.cache.sink import SummarySink
from trunkline.shared.names import Tier

_STORED, _MOVED, _REMOVED = range(3)


class Publisher:
    """Collects the changes of one call of the cache; neighbours of a kind make one event.

    `count` and `xor` digest the keys that stand published, so that a check needs no second copy of them.
    """

    def __init__(self, sink: SummarySink) -> None:
        self.count = 0
        self.xor = 0
        self._sink = sink
        # What is being collected: changes of one kind, so the order among changes is kept.
        self._kind: tuple[int, Tier | None] = (_REMOVED, None)
        self._keys: list[int] = []
        self._depths: list[int] = []

    def stored(self, key: int, depth: int, tier: Tier) -> None:
        self._collect((_STORED, tier), key)
        self._depths.append(depth)
        self.count += 1
        self.xor ^= key

    def stored_many(self, keys: list[int], depths: list[int], tier: Tier) -> None:
        self.flush()
        self._kind = (_STORED, tier)
        self._keys, self._depths = keys, depths
        self.count += len(keys)
        self.xor = reduce(xor, keys, self.xor)

    def moved(self, key: int, tier: Tier) -> None:
        self._collect((_MOVED, tier), key)

    def removed(self, key: int) -> None:
        self._collect((_REMOVED, None), key)
        self.count -= 1
        self.xor ^= key

    def cleared(self) -> None:
        self.flush()
        self._sink.cleared()
        self.count = self.xor = 0

    def flush(self) -> None:
        """Hands over what was collected."""
        if not self._keys:
            return
        keys, depths = self._keys, self._depths
        self._keys, self._depths = [], []
        packed = struct.pack(f"<{len(keys)}Q", *keys)
        change, tier = self._kind
        if tier is None:
            self._sink.removed(packed)
        elif change == _STORED:
            self._sink.stored(packed, struct.pack(f"<{len(depths)}I", *depths), tier)
        else:
            self._sink.moved(packed, tier)

    def _collect(self, kind: tuple[int, Tier | None], key: int) -> None:
        if kind != self._kind:
            self.flush()
            self._kind = kind
        self._keys.append(key)
