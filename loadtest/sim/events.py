"""What a modelled node tells the router, in the order in which it happened, until it is applied to the index."""

from typing import NamedTuple

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.names import Tier
from trunkline.shared.wire import KEY_BYTES


class Change(NamedTuple):
    """Keys that were stored (`depths` and `tier`), moved (`tier`) or removed (neither)."""

    keys: bytes
    depths: bytes | None = None
    tier: Tier | None = None


class EventLog:
    """A `SummarySink` that keeps changes, neighbours of a kind as one, until they are taken."""

    def __init__(self) -> None:
        self.evicted = 0
        """Pages that left the node so far."""
        self._stored_keys: list[bytes] = []
        self._stored_depths: list[bytes] = []
        self._changes: list[Change] = []

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        """In the device tier: nothing is stored in another one first."""
        self._stored_keys.append(keys)
        self._stored_depths.append(depths)

    def moved(self, keys: bytes, tier: Tier) -> None:
        self._close()
        self._changes.append(Change(keys, tier=tier))

    def removed(self, keys: bytes) -> None:
        self._close()
        self.evicted += len(keys) // KEY_BYTES
        self._changes.append(Change(keys))

    def cleared(self) -> None:
        """Nodes do not restart."""

    def take(self) -> list[Change]:
        """What happened since the last call."""
        self._close()
        changes, self._changes = self._changes, []
        return changes

    def _close(self) -> None:
        if self._stored_keys:
            depths = b"".join(self._stored_depths)
            self._changes.append(Change(b"".join(self._stored_keys), depths, Tier.DEVICE))
            self._stored_keys.clear()
            self._stored_depths.clear()


def apply(changes: list[Change], node: int, index: PrefixIndex) -> None:
    for keys, depths, tier in changes:
        if tier is None:
            index.remove(node, keys)
        elif depths is None:
            index.move(node, keys, tier)
        else:
            index.store(node, keys, depths, tier)
