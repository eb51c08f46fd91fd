"""One router's part of a node's load: what routers of a fleet tell each other of their accounts."""

from operator import add
from typing import Annotated

import msgspec

from trunkline.router.scheduler.sizes import NOTHING
from trunkline.shared.wire import Count, Quantity


class Share(msgspec.Struct, array_like=True, frozen=True):
    """As `NodeLoad` keeps account of it."""

    running: Count = 0
    pending: Count = 0
    """Uncached tokens of prompts whose response has not begun."""
    pairs: Count = 0
    """Of attention, of the same prompts."""
    recent: Count = 0
    """Of the pending tokens: placed so lately that a report of the node may not know of them."""
    work: Quantity = 0.0
    """Share of its time that the node needs for what was placed on it lately."""
    sizes: Annotated[tuple[Count, ...], msgspec.Meta(min_length=len(NOTHING), max_length=len(NOTHING))] = NOTHING
    """`Sizes.told` of the pending tokens."""

    def plus(self, other: "Share") -> "Share":
        return Share(
            self.running + other.running,
            self.pending + other.pending,
            self.pairs + other.pairs,
            self.recent + other.recent,
            self.work + other.work,
            tuple(map(add, self.sizes, other.sizes)),
        )


NO_SHARE = Share()
