"""Ways to read pages of another node: lists of where they lie there, and of host slots to bring them to."""

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.shared.names import Tier

Slots = npt.NDArray[np.uint32]
"""[pages] of slots of the own host tier."""


class Status(IntEnum):
    """What became of one page, as the core says it."""

    OK = 0
    CHANGED = 1
    """Let go by the holder since it was located."""
    DAMAGED = 2
    """What arrived is not what was sent."""
    ABSENT = 3
    """The holder lends no such slot."""
    LOST = 4
    """Did not arrive."""


class Result(NamedTuple):
    """What became of a batch."""

    statuses: bytes
    """A Status for each page."""
    error: str | None = None
    """Why pages were lost. The backend is of no use any more then."""


class Backend(ABC):
    """One way to one holder, open. Reads wait, so they are called from a thread of their own, one at a time; `close`
    may be called from any, also during a read, which then ends."""

    name: str
    tiers: frozenset[Tier]
    """Of the holder's, that can be read this way."""
    opens_slowly = False
    """Whether opening takes so long that a read had better go another way meanwhile."""

    @abstractmethod
    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        """Pages `sources` of the holder to slots `targets`, one for each, which are the caller's. Both contiguous."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""
