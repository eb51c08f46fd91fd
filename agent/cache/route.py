"""One way between two neighbouring tiers."""

from collections.abc import Callable, Sequence
from typing import Any

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.lane import Lane, Move
from trunkline.agent.cache.level import Level
from trunkline.agent.engine.builtin.meter import Meter

_WINDOW_S = 5.0
"""Of copying, that the measured speed looks back on."""


class Route:
    """Sends copies of pages along a lane, and takes them over where they land. Used from the engine thread only."""

    def __init__(self, catalog: Catalog, source: Level[Any], target: Level[Any], lane: Lane, batch: int) -> None:
        """`batch`: pages per move."""
        self.before_evicting: Callable[[int], None] = lambda _: None
        """Called before so many pages of the target go to make room."""
        self.source = source
        self.target = target
        self.lane = lane
        self.pages = 0
        """Copied, ever."""
        self.bad = 0
        """Did not arrive as they should, ever."""
        self._catalog = catalog
        self._batch = batch
        self._speed = Meter(_WINDOW_S)

    @property
    def pages_per_s(self) -> float:
        """As measured; 0 before anything was moved."""
        return self._speed.rate

    def send(self, entries: Sequence[Entry]) -> int:
        """Begins to copy entries, parents first, as far as lane and target have room and each has its parent there or
        on its way. All are in the source, and neither in the target nor on the way there. Returns how many."""
        sent = 0
        while sent < len(entries) and not self.lane.full and (move := self._prepare(entries[sent:])):
            self.lane.submit(move)
            sent += len(move.entries)
        return sent

    def carry(self, entries: Sequence[Entry]) -> None:
        """Copies entries, as far as `send` would, and waits for it."""
        while entries and (move := self._prepare(entries)):
            self.lane.carry(move)
            self._flip(move, None)
            entries = entries[len(move.entries) :]

    def land(self, used: int | None = None) -> Move | None:
        """Flips the next move that is done: from now on its copies count. `used`: as of when they were of use, None:
        as their sources."""
        move = self.lane.landed()
        if move is not None:
            self._flip(move, used)
        return move

    def _prepare(self, entries: Sequence[Entry]) -> Move | None:
        """Holds what is to be copied, and takes pages for it."""
        target, chosen, anchors = self.target, dict[Entry, None](), []
        for entry in entries[: self._batch]:
            parent = entry.parent
            if parent is not None and parent not in chosen and parent not in target.incoming:
                anchor = target.page_of(parent)
                if anchor == GONE:
                    break
                anchors.append(anchor)
            chosen[entry] = None
        sending = list(chosen)
        pages = [self.source.page_of(entry) for entry in sending]
        # Both are held, lest they are what makes room.
        self.source.hold(pages)
        target.hold(anchors)
        count = self._make_room(len(sending))
        taken = target.pool.allocate(count)
        if not count or taken is None:
            self.source.let_go(pages)
            target.let_go(anchors)
            return None
        self.source.let_go(pages[count:])
        target.incoming.update(sending[:count])
        return Move(sending[:count], pages[:count], taken, anchors)

    def _flip(self, move: Move, used: int | None) -> None:
        if move.error is None:
            self._speed.add(len(move.entries), move.seconds)
        for position, (entry, page) in enumerate(zip(move.entries, move.target, strict=True)):
            if move.error is not None or position in move.bad:
                self.bad += 1
            elif self._catalog.has(entry) and (copy := self.source.copy_of(entry)):
                if self.target.store(entry, page, copy.used if used is None else used):
                    self._catalog.changed(entry)
                self.pages += 1
        self.target.incoming.difference_update(move.entries)
        self.target.let_go(move.target + move.anchors)
        self.source.let_go(move.source)

    def _make_room(self, count: int) -> int:
        """For so many pages in the target, or for fewer: how many."""
        free = self.target.pool.free
        missing = count - free
        if missing > 0:
            self.before_evicting(missing)
        while missing > 0 and not self._catalog.evict(self.target, missing):
            missing //= 2
        return min(count, free + max(0, missing))
