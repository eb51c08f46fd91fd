"""One way between two neighbouring tiers."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.disk_level import DiskLevel
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.lane import NO_PARENT, Lane, Move
from trunkline.agent.cache.level import Level
from trunkline.agent.meter import Meter
from trunkline.shared.metrics.agent import MOVE_TIME

TRUST_S = 30.0
"""How long a measured speed is believed: what was slow may have recovered, and only trying shows it."""
_WINDOW_S = 5.0
"""Of copying, that the measured speed looks back on."""


class Speed:
    """Of copying pages, as measured lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meter = Meter(_WINDOW_S)
        self._moved_at = -math.inf

    def add(self, pages: int, seconds: float) -> None:
        """So many took so long."""
        self._meter.add(pages, seconds)
        self._moved_at = self._clock()

    @property
    def pages_per_s(self) -> float:
        """0 before anything was moved."""
        return self._meter.rate

    @property
    def last_s(self) -> float:
        """Seconds for a page, whenever that was; 0 before anything was moved."""
        return 1.0 / self._meter.rate if self._meter.rate else 0.0

    def seconds_per_page(self) -> float:
        """The same, but 0 if nothing was moved lately: then it is worth a try."""
        recent = self._clock() - self._moved_at < TRUST_S
        return self.last_s if recent else 0.0


class Route:
    """Sends copies of pages along a lane, and takes them over where they land.

    Used by one thread at a time: the engine, or its keeper.
    """

    def __init__(
        self,
        catalog: Catalog,
        source: Level[Any],
        target: Level[Any],
        lane: Lane,
        batch: int,
        speed: Speed | None = None,
    ) -> None:
        """`batch`: pages per move. `speed`: of this way, if it was measured before."""
        self.make_room: Callable[[int], None] = lambda _: None
        """Called when room is wanted in the target for so many pages that can wait."""
        self.may_evict: Callable[[Entry], bool] = lambda _: True
        """Whether a page of the target may make room for one that can wait."""
        self.source = source
        self.target = target
        self.lane = lane
        self.pages = 0
        """Copied, ever."""
        self.bad = 0
        """Did not arrive as they should, ever."""
        self.cpu_s = 0.0
        """Of the threads that carry, ever."""
        self.seconds = MOVE_TIME.distribution()
        """To copy a batch."""
        self._catalog = catalog
        self.batch = batch
        self.speed = Speed() if speed is None else speed
        self._retired = False

    def send(self, entries: Sequence[Entry], *, fetched: bool = True) -> int:
        """Begins to copy entries, parents first, as far as lane and target have room and each has its parent there or
        on its way. All are in the source, and neither in the target nor on the way there. Returns how many.
        `fetched`: whether what is being fetched may make room for them."""
        sent = 0
        while sent < len(entries) and not self.lane.full:
            move = self._prepare(entries[sent:], lambda count: self._room(count, fetched=fetched))
            if move is None:
                break
            self.lane.submit(move)
            sent += len(move.entries)
        return sent

    def carry(self, entries: Sequence[Entry]) -> None:
        """Copies entries, as far as `send` would, and waits for it."""
        while entries and (move := self._prepare(entries, self._urgent_room)):
            self.lane.carry(move)
            self._flip(move)
            entries = entries[len(move.entries) :]

    def land(self) -> Move | None:
        """Flips the next move that is done: from now on its copies count."""
        move = self.lane.landed()
        if move is not None:
            self.cpu_s += move.cpu_s
            self._flip(move)
        return move

    def retire(self) -> None:
        """Its tier has failed: what is still under way is dropped where it lands."""
        self._retired = True

    def _prepare(self, entries: Sequence[Entry], room: Callable[[int], int]) -> Move | None:
        """Holds what is to be copied, and takes pages for it. `room`: makes it, for so many pages or for fewer."""
        target, chosen = self.target, dict[Entry, None]()
        held: dict[int, None] = {}  # once each, however many children go there
        for entry in entries[: self.batch]:
            if self.source.copy_of(entry) is None:
                break  # it made room for those before it
            parent = entry.parent
            if parent is not None and parent not in chosen and parent not in target.incoming:
                anchor = target.page_of(parent)
                if anchor != GONE:
                    held[anchor] = None
                elif target.closed:
                    break
            chosen[entry] = None
        sending, anchors = list(chosen), list(held)
        pages = [self.source.page_of(entry) for entry in sending]
        # Both are held, lest they are what makes room.
        self.source.hold(pages)
        target.hold(anchors)
        count = room(len(sending))
        self._catalog.flush()  # what is there no more is said before its pages are anybody else's
        taken = target.take(sending[:count])
        if not taken:
            self.source.let_go(pages)
            target.let_go(anchors)
            return None
        sending = sending[:count]
        self.source.let_go(pages[count:])
        target.incoming.update(zip(sending, taken, strict=True))
        move = Move(sending, pages[:count], taken, anchors)
        if isinstance(target, DiskLevel):
            move.parents = [self._place(entry.parent) for entry in sending]
            move.texts = [self._catalog.texts.of(entry) for entry in sending]
            move.hot = target.placement.hot[taken].tolist()
            move.removed, target.freed = target.freed, []
        return move

    def _place(self, parent: Entry | None) -> int:
        """Where the parent is in the target, or will be."""
        if parent is None:
            return NO_PARENT
        return self.target.incoming.get(parent, self.target.page_of(parent))

    def _flip(self, move: Move) -> None:
        if move.error is None:
            self.speed.add(len(move.entries), move.seconds)
            self.seconds.add(move.seconds)
        for position, (entry, page) in enumerate(zip(move.entries, move.target, strict=True)):
            if self._retired or move.error is not None or position in move.bad:
                self.bad += 1
            else:
                self.pages += self._land(entry, page)
        for entry in move.entries:
            del self.target.incoming[entry]
        self.target.let_go(move.target + move.anchors)
        self.source.let_go(move.source)

    def _land(self, entry: Entry, page: int) -> bool:
        """The page of the target holds the entry now. False: it is not in the source any more, nor wanted."""
        if not self._catalog.has(entry) or self.source.copy_of(entry) is None:
            return False
        if self.target.store(entry, page):
            self._catalog.changed(entry)
        return True

    def _room(self, count: int, *, fetched: bool) -> int:
        """In the target, for pages that can wait: for how many of so many."""
        if count > self.target.pool.free:
            self.make_room(count)
        missing = max(0, count - self.target.pool.free)
        following = self.target.following(missing, fetched=fetched) if missing else []
        goes = (self.may_evict(self.target.entry_of(member)) for member in following)
        return self._urgent_room(count - missing + sum(takewhile(bool, goes)))

    def _urgent_room(self, count: int) -> int:
        """In the target, whatever must go for it."""
        free = self.target.pool.free
        missing = max(0, count - free)
        while missing > 0 and not self._catalog.evict(self.target, missing):
            missing //= 2
        return min(count, free + missing)
