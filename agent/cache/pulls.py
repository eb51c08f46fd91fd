"""Pages of other nodes, on their way to the host tier: one more source of it, like the disk.

    engine thread   ask ┐              ┌ entries, hold parents, take slots, submit ┐            ┌ flip: in the map now
    event loop          └ locate, lease┘                                           │            │
    lane                                                                           └read, verify┘

What comes is a page of the host tier from its flip on, and goes to the device as others do. Nobody waits for a pull for
longer than `Fetch` says; what comes after that stays, if its parent is still there.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.counters import PullCounters
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.lane import Lane, Move
from trunkline.agent.cache.level import Level, LowerLevel
from trunkline.agent.cache.lower import LowerTiers
from trunkline.agent.cache.offload import Offload
from trunkline.agent.cache.peers import Found, Peers, Wanted
from trunkline.agent.cache.pull import Pull, Share
from trunkline.agent.cache.route import Route, Speed
from trunkline.agent.transfer.backend import Status
from trunkline.shared.names import PAGE_TOKENS

MOST_PULLS = 8
"""At a time; each has a thread."""
MOST_HOLDERS = 256
"""Whose speed is remembered."""
GUESSED_BYTES_PER_S = 1e9
"""Of a network that was not measured: 10 Gbit/s, with something lost on the way."""
BATCH_BYTES = 8 << 20
"""Per read: some milliseconds on a fast network, so that what comes first can be used first."""


class PullRoute(Route):
    """From a pull to the host tier. What lands is new to the catalog."""

    def __init__(self, catalog: Catalog, pull: Pull, host: LowerLevel, lane: Lane, batch: int, speed: Speed) -> None:
        # A pull is the little of a level that a route needs of where pages come from.
        super().__init__(catalog, cast("Level[Any]", pull), host, lane, batch, speed)

    def _land(self, entry: Entry, page: int) -> bool:
        here, parent = self._catalog.entries, entry.parent
        if entry.key in here or (parent is not None and not self._catalog.has(parent)):
            return False  # somebody else computed it, or what it hangs on is gone
        if not self.target.store(entry, page):
            return False
        self._catalog.admit(entry)
        return True


class Pulls:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, catalog: Catalog, host: LowerLevel, offload: Offload, lower: LowerTiers) -> None:
        """`offload`: from the device to the host."""
        self.peers: Peers | None = None
        """None: nothing is pulled."""
        self.may_evict: Callable[[Entry], bool] = lambda _: True
        """Whether the host may let the entry go for a page that is pulled."""
        self.on_landed: Callable[[], None] = lambda: None
        self._asked = self._unanswered = self._abandoned = self._pages = 0
        self._statuses: Counter[Status] = Counter()
        """Pages that did not come, by why; counted in lanes."""
        self._catalog = catalog
        self._host = host
        self._offload = offload
        self._batch = min(lower.batch, max(1, BATCH_BYTES // lower.host.page_bytes))
        self._page_bytes = lower.host.page_bytes
        self._open_lane = lower.open_lane
        self._speeds: OrderedDict[str, Speed] = OrderedDict()
        self._active: dict[Pull, tuple[Chain, Entry | None]] = {}
        """With the chain, and the page that the first one hangs on."""
        self._ending: list[Pull] = []
        self._answers: deque[tuple[Pull, Found | None]] = deque()
        """From other threads."""

    @property
    def moving(self) -> bool:
        return bool(self._active or self._ending)

    def counters(self) -> PullCounters:
        """Ever."""
        bad = {status.name.lower(): count for status, count in self._statuses.items()}
        return PullCounters(self._asked, self._unanswered, self._abandoned, self._pages, bad)

    @property
    def coming(self) -> int:
        """Pages that are still to come."""
        return sum(len(pull.keys) - pull.first - pull.landed for pull in self._active)

    @property
    def rate(self) -> float:
        """Tokens per second from the holder that was read from last; before any was, a guess, for somebody must try. 0:
        there are no other nodes."""
        if self.peers is None:
            return 0.0
        last = next(reversed(self._speeds.values()), None)
        return PAGE_TOKENS * ((last.pages_per_s if last else 0.0) or GUESSED_BYTES_PER_S / self._page_bytes)

    def begin(self, chain: Chain, first: int, end: int, parent: Entry | None, compute_s: float) -> Share | None:
        """A pull of pages `first .. end` of the chain from its holder: one that is under way already, or a new one.
        None: it would take longer than computing them, or is not possible now.

        `compute_s`: how long a page takes to compute."""
        if self.peers is None:
            return None
        for pull in self._active:
            if shared := pull.shared(chain.keys, first):
                pull.readers += 1
                return Share(pull, first - pull.first, shared)
        count = min(end - first, chain.offered - first, self._host.pool.total // 2)  # it needs its room in the host
        speed = self._speeds.get(chain.holder)
        slow = speed is not None and speed.seconds_per_page() > compute_s
        if count <= 0 or slow or len(self._active) + len(self._ending) >= MOST_PULLS:
            return None
        if chain.keys[first] in self._catalog.entries:  # of other tokens: a false hit
            return None
        pull = Pull(chain.holder, chain, first, count, compute_s)
        pull.readers = 1
        self._asked += 1
        self._active[pull] = (chain, parent)
        wanted = Wanted(chain.namespace, pull.keys, chain.packed(first + count), first)
        limit_s = pull.time_s(count)

        def answered(found: Found | None) -> None:
            self._answers.append((pull, found))
            self.on_landed()

        self.peers.locate(chain.holder, wanted, limit_s / 4, limit_s, answered)
        return Share(pull, 0, count)

    def leave(self, pull: Pull) -> None:
        """A request does not wait for it any more."""
        pull.readers -= 1
        if not pull.readers and pull.pending:
            self._abandoned += 1

    def turn(self) -> None:
        """Takes answers, flips what has landed, sends more. Never waits."""
        while self._answers:
            self._answered(*self._answers.popleft())
        for pull in list(self._active):
            self._advance(pull)
        self._ending = [pull for pull in self._ending if not self._ended(pull)]

    def close(self, timeout: float) -> bool:
        """Ends what is under way. False: something is still being read."""
        for pull in list(self._active):
            pull.failed = True
            self._finish(pull)
        ended = [pull.route.lane.close(timeout) for pull in self._ending if pull.route is not None]
        return all(ended)

    def _answered(self, pull: Pull, found: Found | None) -> None:
        pull.answered = True
        chain, parent = self._active.get(pull, (None, None))
        if found is None or chain is None or self.peers is None or not pull.readers or not len(found.descriptors):
            self._unanswered += found is None
            pull.failed = True
            if found is not None and self.peers is not None:
                self.peers.release(found)
            return
        pull.found = found
        pull.set_entries(chain, parent, min(len(found.descriptors), len(pull.keys) - pull.first))
        lane = self._open_lane(f"pull {pull.holder}", lambda move: self._read(pull, move))
        lane.on_landed = self.on_landed
        pull.route = PullRoute(self._catalog, pull, self._host, lane, self._batch, self._speed(pull.holder))
        pull.route.may_evict = self.may_evict

    def _advance(self, pull: Pull) -> None:
        if (route := pull.route) is not None:
            while (move := route.land()) is not None:
                self._landed(pull, move)
            if pull.readers and not pull.failed:
                self._send(pull, route)
        if pull.answered and (not pull.pending or not pull.readers):
            self._finish(pull)

    def _send(self, pull: Pull, route: Route) -> None:
        """What comes must have its parent in the host: where that is on the device alone, it is copied first."""
        _, parent = self._active[pull]
        here = parent is None or parent.host is not None or parent in self._host.incoming
        if not pull.sent and parent is not None and not here:
            pull.failed = not self._offload.bring(parent)
            return
        sent = route.send(pull.entries[pull.sent :])
        pull.sent += sent
        if not sent and not route.lane.moves and pull.sent < len(pull.entries):
            pull.failed = True  # no room

    def _landed(self, pull: Pull, move: Move) -> None:
        end = pull.landed + len(move.entries)
        while pull.landed < end and self._catalog.has(pull.entries[pull.landed]):
            pull.landed += 1
            self._pages += 1
        # Without one page those behind it are of no use.
        pull.failed |= pull.landed < end

    def _finish(self, pull: Pull) -> None:
        del self._active[pull]
        pull.failed |= pull.pending
        self._ending.append(pull)
        if pull.route is not None:
            pull.route.lane.end()

    def _ended(self, pull: Pull) -> bool:
        """Whether nothing of it is under way any more; then its lease ends."""
        if pull.route is not None:
            while (move := pull.route.land()) is not None:
                self._landed(pull, move)
            if pull.route.lane.moves:
                return False
        if pull.found is not None and self.peers is not None:
            self.peers.release(pull.found)
        return pull.answered

    def _read(self, pull: Pull, move: Move) -> None:
        """In a lane."""
        if pull.failed or not pull.readers:
            raise OSError("nobody waits for these pages any more")
        if pull.found is None or self.peers is None:
            raise OSError("nothing was found")
        sources, targets = pull.found.descriptors[move.source], np.array(move.target, np.uint32)
        statuses = self.peers.read(pull.found, sources, targets, pull.time_s(len(targets)))
        for position, status in enumerate(statuses):
            if status != Status.OK:
                move.bad.add(position)
                self._statuses[Status(status)] += 1

    def _speed(self, holder: str) -> Speed:
        speed = self._speeds.setdefault(holder, Speed())
        self._speeds.move_to_end(holder)
        if len(self._speeds) > MOST_HOLDERS:
            self._speeds.popitem(last=False)
        return speed
