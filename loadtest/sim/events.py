"""What a modelled node tells the router, in the order in which it happened, until it is applied to the index."""

from trunkline.kernels.core import PrefixIndex
from trunkline.shared.names import Tier
from trunkline.shared.wire import KEY_BYTES

Change = tuple[bytes, bytes | None]
"""Keys with the depths at which they were stored, or None where they were removed."""


class EventLog:
    """A `SummarySink` that keeps changes, neighbours of a kind as one, until they are taken."""

    def __init__(self) -> None:
        self.evicted = 0
        """Pages removed so far."""
        self._stored_keys: list[bytes] = []
        self._stored_depths: list[bytes] = []
        self._changes: list[Change] = []

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None:
        self._stored_keys.append(keys)
        self._stored_depths.append(depths)

    def removed(self, keys: bytes) -> None:
        self._close()
        self.evicted += len(keys) // KEY_BYTES
        self._changes.append((keys, None))

    def moved(self, keys: bytes, tier: Tier) -> None:
        """There is one tier."""

    def cleared(self) -> None:
        """Nodes do not restart."""

    def take(self) -> list[Change]:
        """What happened since the last call."""
        self._close()
        changes, self._changes = self._changes, []
        return changes

    def _close(self) -> None:
        if self._stored_keys:
            self._changes.append((b"".join(self._stored_keys), b"".join(self._stored_depths)))
            self._stored_keys.clear()
            self._stored_depths.clear()


def apply(changes: list[Change], node: int, index: PrefixIndex) -> None:
    for keys, depths in changes:
        if depths is None:
            index.remove(node, keys)
        else:
            index.store(node, keys, depths, Tier.DEVICE)
