"""What the index holds of one node, and how it compares with what the node says."""

import logging

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.wire import Cleared, Event, Moved, Removed, SnapshotPart, Stored

log = logging.getLogger(__name__)


class Holding:
    """One node's part of an index of SUMMARY_PARTITIONS. Calls must not overlap."""

    def __init__(self, index: PrefixIndex, node: int) -> None:
        self.partial = False
        """The index's bound dropped some keys since the last `clear`."""
        self.dropped = 0
        """Keys, ever."""
        self._index = index
        self._node = node

    def apply(self, event: Event) -> None:
        match event:
            case Stored(keys, depths, tier):
                self._count_dropped(self._index.store(self._node, keys, depths, tier))
            case Moved(keys, tier):
                self._index.move(self._node, keys, tier)
            case Removed(keys):
                self._index.remove(self._node, keys)
            case Cleared():
                self.clear()

    def load(self, part: SnapshotPart) -> None:
        """Adds the part."""
        self._count_dropped(self._index.store_mixed(self._node, part.keys, part.depths, part.tiers))

    def keys(self, partition: int) -> memoryview:
        """Those of one partition, u64."""
        return memoryview(self._index.dump(self._node, partition)[0]).cast("Q")

    def disagreeing(self, digests: bytes, after: str) -> list[int]:
        """The partitions whose digest is another one than the node's, as of `after`; they are logged."""
        held = self._index.digests(self._node)
        if self.partial or held == digests:
            return []
        here, there = memoryview(held).cast("Q"), memoryview(digests).cast("Q")
        bad = [at // 2 for at in range(0, len(here), 2) if here[at : at + 2] != there[at : at + 2]]
        which = ", ".join(f"partition {at} ({here[2 * at]} keys, agent has {there[2 * at]})" for at in bad)
        log.warning("summary of node %d disagrees after %s: %s", self._node, after, which)
        return bad

    def clear(self) -> None:
        if any(self._index.digest(self._node)):
            self._index.clear(self._node)
        self.partial = False

    def _count_dropped(self, keys: int) -> None:
        if keys and not self.partial:
            log.warning("summary of node %d is partial: the index is full", self._node)
        self.partial = self.partial or keys > 0
        self.dropped += keys
