"""A run of pages that another node holds, and that comes from there."""

from collections.abc import Sequence
from typing import NamedTuple

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.peers import Found
from trunkline.agent.cache.route import Route
from trunkline.shared.names import PAGE_TOKENS, Tier

LEAST_TIME_S, MOST_TIME_S = 0.25, 10.0
"""Bounds of the time for an answer and for a batch; between them it is what computing the pages would take."""


class Pull:
    """A run of pages of one chain at one holder. As a source of pages its page numbers are those of its entries."""

    tier = Tier.HOST

    def __init__(self, holder: str, chain: Chain, first: int, count: int, compute_s: float) -> None:
        """Pages `first .. first + count` of the chain, those before are here. `compute_s`: how long one would take."""
        self.holder = holder
        self.first = first
        self.keys = chain.keys[: first + count]
        self.compute_s = compute_s
        self.entries: list[Entry] = []
        """Once they were found: parents first."""
        self.landed = 0
        """Of the entries, in order: how many are in the host tier, or were."""
        self.readers = 0
        """Requests that wait for it."""
        self.answered = False
        self.found: Found | None = None
        self.failed = False
        self.sent = 0
        self.route: Route | None = None
        self._numbers: dict[Entry, int] = {}

    @property
    def pending(self) -> bool:
        """Whether more of it will come."""
        return not self.answered or (not self.failed and self.landed < len(self.entries))

    @property
    def more(self) -> bool:
        """Whether the holder has more of the chain than it lent."""
        return not self.failed and self.found is not None and self.found.held > self.first + len(self.entries)

    def shared(self, keys: Sequence[int], first: int) -> int:
        """Pages of a chain, from `first` on, that come with this pull; 0 if that one is not among them."""
        if not self.pending or not self.first <= first < min(len(self.keys), len(keys)):
            return 0
        length = min(len(self.keys), len(keys))
        differ = (at for at in range(first, length) if self.keys[at] != keys[at])
        return next(differ, length) - first

    def time_s(self, pages: int) -> float:
        """For so many pages."""
        return min(MOST_TIME_S, max(LEAST_TIME_S, pages * self.compute_s))

    def set_entries(self, chain: Chain, parent: Entry | None, count: int) -> None:
        """The first `count` pages were found."""
        for index in range(self.first, self.first + count):
            depth = (index + 1) * PAGE_TOKENS
            namespace = chain.namespace if parent is None else None
            parent = Entry(
                self.keys[index], parent, namespace, chain.page(index), GONE, depth, used=chain.used, tier=Tier.HOST
            )
            self._numbers[parent] = len(self.entries)
            self.entries.append(parent)

    def page_of(self, entry: Entry) -> int:
        return self._numbers[entry]

    def copy_of(self, entry: Entry) -> Entry:
        return entry

    def hold(self, pages: Sequence[int]) -> None:
        """The lease does."""

    def let_go(self, pages: Sequence[int]) -> None:
        """The lease does."""


class Share(NamedTuple):
    """What one request wants of a pull: so many of its entries, from this one on."""

    pull: Pull
    first: int
    pages: int
