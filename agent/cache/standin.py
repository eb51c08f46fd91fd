"""What takes the disk's place while it does not work: a little memory."""

import numpy as np

from trunkline.agent.cache.codec import Blocks
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import Move

STAND_IN_BYTES = 256 << 20


class StandIn:
    """A `Store` in memory that is taken as it is used."""

    def __init__(self, host: HostMemory, pages: int) -> None:
        """As many pages as the disk has, if they fit into STAND_IN_BYTES."""
        self.pages = max(1, min(pages, STAND_IN_BYTES // host.page_bytes))
        self._host = host
        self._blocks: Blocks = np.empty((self.pages, host.page_bytes), np.uint8)

    def load(self, move: Move) -> None:
        for source, target in zip(move.source, move.target, strict=True):
            self._host.blocks[target] = self._blocks[source]

    def save(self, move: Move) -> None:
        for source, target in zip(move.source, move.target, strict=True):
            self._blocks[target] = self._host.blocks[source]
