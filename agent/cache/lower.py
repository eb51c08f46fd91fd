"""What the tiers below the device are made of: memory, and who copies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trunkline.agent.cache.host import Blocks, HostMemory
from trunkline.agent.cache.lane import Lane, Move

BATCH_BYTES = 32 << 20
"""Per move: some milliseconds of copying, so that what comes first can be used first."""


class Store(Protocol):
    """A tier's pages. `load` and `save` are called from one thread each, and may wait."""

    pages: int

    def load(self, move: Move) -> None:
        """Pages `source` of this tier to pages `target` of the one above. Raises OSError if the tier has failed."""

    def save(self, move: Move) -> None:
        """Pages `source` of the tier above to pages `target` of this one. Raises OSError if the tier has failed."""


@dataclass(frozen=True, slots=True)
class LowerTiers:
    """The tiers that a cache has below its device."""

    host: Store
    batch: int
    """Pages per move."""
    open_lane: Callable[[str, Callable[[Move], None]], Lane] = Lane

    @property
    def pages(self) -> int:
        """In all of them."""
        return self.host.pages


def open_tiers(device: Blocks, host_bytes: int) -> LowerTiers | None:
    """`device`: its pages, [pages, page_bytes] u8. None: there is nothing below. Raises ConfigError."""
    if not host_bytes:
        return None
    host = HostMemory(device, host_bytes)
    return LowerTiers(host, max(1, BATCH_BYTES // device.shape[1]))
