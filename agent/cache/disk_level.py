"""The pages of the disk tier, which are told apart by how long they are expected to stay."""

from collections.abc import Sequence

from trunkline.agent.cache.entry import Copy, Entry
from trunkline.agent.cache.level import LowerLevel
from trunkline.agent.cache.placement import Placement
from trunkline.agent.cache.visits import Visits
from trunkline.shared.names import Tier

WINDOW = 1024
"""Pages that what is usual looks back on."""


class DiskLevel(LowerLevel):
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, pages: int, visits: Visits) -> None:
        super().__init__(Tier.DISK, pages, visits)
        self.freed: list[int] = []
        """Slots that were let go, for whoever must write that down."""
        self.placement = Placement(self.pool)
        self._visits = visits
        self._came = 0
        self._usual = 0.0
        """What the pages that came lately were worth, on average."""

    def take(self, entries: Sequence[Entry]) -> list[int] | None:
        return self.placement.take([self._is_hot(entry) for entry in entries])

    def _is_hot(self, entry: Entry) -> bool:
        """Whether it is expected to stay longer than others: it is protected, or worth more than is usual."""
        worth = self._visits.heat.worth(entry.used)
        self._came += 1
        self._usual += (worth - self._usual) / min(self._came, WINDOW)
        return worth > self._usual or entry.key in self._visits.protected

    def _free(self, members: list[Copy]) -> None:
        self.freed += [copy.page for copy in members]
        super()._free(members)
