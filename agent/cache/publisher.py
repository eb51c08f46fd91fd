"""Packs single changes into events, in order, and keeps account of what stands published."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.sink import SummarySink
from trunkline.shared.names import Tier

Numbers = npt.NDArray[np.unsignedinteger[Any]]
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

    def stored_many(self, keys: Numbers, depths: Numbers, tier: Tier) -> None:
        """`stored` for each, at once. Keys are u64, depths u32."""
        self.flush()
        if len(keys):
            self._sink.stored(keys.astype("<u8").tobytes(), depths.astype("<u4").tobytes(), tier)
        self.count += len(keys)
        self.xor ^= int(np.bitwise_xor.reduce(keys))

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
