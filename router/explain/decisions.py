"""The decisions made last, with what became of the requests: kept as they are, within a bound of memory."""

from collections import deque
from itertools import islice

from trunkline.router.scheduler.decision import Decision
from trunkline.shared.metrics.router import DECISION

MAX_BYTES = 32 << 20
_BYTES = 1400
_BYTES_PER_NODE = 72
"""Of one decision; the most that was measured, for nodes that all hold some of the prompt."""


class Decisions:
    """Used on the event loop only."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.blind = 0
        """Made while a candidate's summary was not known."""
        self.seconds = DECISION.distribution()
        """From a decoded request to its ranking."""
        self._max_bytes = max_bytes
        self._kept: deque[Decision] = deque()
        """Oldest first."""
        self._nodes = self._room = 0

    def add(self, request_id: str, decision: Decision, seconds: float) -> None:
        """A request was ranked, which took so long."""
        decision.request_id = request_id
        kept = self._kept
        kept.append(decision)
        if decision.ranking is not None and (nodes := len(decision.ranking)) != self._nodes:
            self._resize(nodes)
        while len(kept) > self._room:
            kept.popleft().forget()
        self.seconds.add(seconds)
        if decision.unknown:
            self.blind += decision.blind

    def find(self, request_id: str) -> Decision | None:
        """Clients choose ids: of several requests with the same one, the last."""
        return next((decision for decision in reversed(self._kept) if decision.request_id == request_id), None)

    def newest(self, limit: int) -> list[Decision]:
        """Newest first."""
        return list(islice(reversed(self._kept), limit))

    def __len__(self) -> int:
        return len(self._kept)

    def _resize(self, nodes: int) -> None:
        """The fleet has grown: decisions are larger, and fewer are kept."""
        self._nodes = nodes
        self._room = max(1, self._max_bytes // (_BYTES + nodes * _BYTES_PER_NODE))
