"""Other nodes, as the cache sees them. `agent/transfer/` is the other side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.shared.namespace import Namespace

Slots = npt.NDArray[np.uint32]
"""[pages] of slots of the own host tier."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The pages `first .. len(keys)` of a chain."""

    namespace: Namespace
    """With its salt."""
    keys: Sequence[int]
    """Of the chain from its first page on."""
    tokens: bytes
    """As many pages of token ids, packed i32."""
    first: int


class Found(Protocol):
    """Pages at a holder, leased. Their token ids are those that were wanted."""

    @property
    def descriptors(self) -> Descriptors:
        """Where the first of the wanted pages lie, one after the other."""

    @property
    def held(self) -> int:
        """Pages of the chain that the holder has, with those that it did not lend yet."""


class Peers(Protocol):
    """The other nodes, by the addresses of their control channels."""

    def locate(
        self,
        holder: str,
        wanted: Wanted,
        wait_s: float,
        timeout_s: float,
        answered: Callable[[Found | None], None],
    ) -> None:
        """Asks a holder, and does not wait. `answered` is called once, from another thread; None: it has nothing, or
        does not answer within `timeout_s`. `wait_s`: how long the holder may take to bring the first page to memory."""

    def read(self, found: Found, sources: Descriptors, targets: Slots, timeout_s: float) -> bytes:
        """Some of the pages to slots of the host tier, which are the caller's. Waits: for lanes. A
        `transfer.backend.Status` for each."""

    def release(self, found: Found) -> None:
        """Nothing more of it is read. Does not wait."""
