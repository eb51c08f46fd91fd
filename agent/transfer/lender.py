"""The holder's side on the engine thread: finds what of a chain lies in memory, and leases it.

A question waits in a bounded inbox for the engine thread, or its keeper's, and is worked on for TURN_S at most per
turn: a chain of 80,000 pages takes many times as long to walk. The walk goes from the deepest known page up, parent by
parent; nothing needs to stay while it lasts, for tiers are prefix-closed: whatever was let go meanwhile is missing at
the deep end.
"""

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.level import Level
from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.agent.transfer.leases import LeaseLimits, Leases
from trunkline.agent.transfer.messages import Locate, digest
from trunkline.shared.names import PAGE_TOKENS

TURN_S = 0.002
SLICE = 512
"""Pages between two looks at the clock."""
STAGED = 2048
"""Pages that are sent to the host at a time for a question that waits for them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lent:
    """What became of a question. `descriptors`: of pages `first ..`, none if nothing can be lent."""

    number: int
    """The lease; 0: none."""
    first: int
    held: int
    """Pages of the chain that are in some tier."""
    seconds: float
    """How long the lease lasts."""
    descriptors: Descriptors
    chain: Sequence[Entry]
    """From the first page to the last described. Of these only the token ids may be read, which never change."""


NOTHING = Lent(0, 0, 0, 0.0, np.empty(0, DESCRIPTOR), ())


@dataclass(eq=False, slots=True)
class _Ask:
    session: int
    locate: Locate
    until: float
    answer: Callable[[Lent], None]
    work: Iterator[bool]


class Lender:
    """`ask`, `release` and `leave` are for one other thread, the event loop's; everything else is the engine's."""

    def __init__(
        self,
        cache: PageCache,
        limits: LeaseLimits,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake`: makes the engine thread call `turn` soon; must not wait."""
        self.on_computing: Callable[[bool], None] = lambda _: None
        """Called from the engine thread when it begins to compute on this machine's cores, and when it has nothing more
        to compute: whoever sends pages gives way to it. Must not wait."""
        self.leases = Leases(cache.readable, limits, clock)
        self.wake = wake
        self._cache = cache
        self._clock = clock
        self._inbox: deque[Callable[[], None]] = deque()
        """Bounded by who asks: a session has a few questions at a time, and as many leases at most."""
        self._asks: list[_Ask] = []

    def ask(self, session: int, locate: Locate, wait_s: float, answer: Callable[[Lent], None]) -> None:
        """`answer` is called from the engine thread, once, unless the session leaves before; it must not wait.

        After `wait_s` it says what there is; whoever asks calls `wake` then, for the engine may be idle.
        """
        until = self._clock() + wait_s
        one = _Ask(session, locate, until, answer, iter(()))
        one.work = self._work(one)
        self._put(lambda: self._asks.append(one))

    def release(self, session: int, number: int) -> None:
        """The reader is done with a lease."""
        self._put(lambda: self.leases.release(session, number))

    def leave(self, session: int) -> None:
        """The reader is gone, and with it its questions and leases."""
        self._put(lambda: self._leave(session))

    def turn(self) -> None:
        """Takes TURN_S, or a slice of pages longer."""
        while self._inbox:
            self._inbox.popleft()()
        self.leases.expire()
        until = self._clock() + TURN_S
        ready = list(self._asks)
        while ready:
            ready = [one for one in ready if self._advance(one)]
            if self._clock() > until:
                break
        if ready:
            self.wake()

    def check(self) -> None:
        """Raises RuntimeError with the first thing that does not add up."""
        self.leases.check()

    def _put(self, item: Callable[[], None]) -> None:
        self._inbox.append(item)
        self.wake()

    def _leave(self, session: int) -> None:
        self._asks = [one for one in self._asks if one.session != session]
        self.leases.leave(session)

    def _advance(self, one: _Ask) -> bool:
        """Whether to go on at once: not when it is done, or waits for the disk."""
        more = next(one.work, None)
        if more is None:
            self._asks.remove(one)
        return more is True

    def _work(self, one: _Ask) -> Iterator[bool]:
        """Steps of a slice each: True to go on, False to wait for a turn."""
        locate, chain = one.locate, list[Entry]()
        # Of a model with a sliding window the pages in memory have gaps.
        entry = self._deepest(locate) if self._cache.window is None else None
        while entry is not None:
            for _ in range(SLICE):
                chain.append(entry)
                entry = entry.parent
                if entry is None:
                    break
            yield True
        if chain and not _is_of(chain[-1], locate.namespace):
            chain.clear()
        chain.reverse()
        while self._must_wait(chain, one):
            yield False
        end = min(self._ready(chain), locate.first + self.leases.room(one.session))
        if end <= locate.first:
            one.answer(replace(NOTHING, held=_held(chain)))
            return
        yield from self._lend(one, chain, end)

    def _lend(self, one: _Ask, chain: list[Entry], end: int) -> Iterator[bool]:
        """Leases the pages `first .. end`, which are in memory, and says where they lie."""
        first = one.locate.first
        held = _held(chain)
        parts: list[tuple[Level[Any], int, int]] = []
        begin = first
        for level in self._cache.readable:
            stop = min(end, _leading(chain, level))
            if stop > begin:
                parts.append((level, begin, stop))
                begin = stop
        holds = [(level, level.page_of(chain[stop - 1])) for level, _, stop in parts]
        lease = self.leases.grant(one.session, end - first, holds, one.locate.lease_s)
        rows = np.empty(end - first, DESCRIPTOR)
        for level, begin, stop in parts:
            for start in range(begin, stop, SLICE):
                if lease.ended:  # and what it held may be anywhere now
                    one.answer(NOTHING)
                    return
                part = slice(start, min(stop, start + SLICE))
                slots = [level.page_of(entry) for entry in chain[part]]
                into = rows[part.start - first : part.stop - first]
                into["tier"], into["slot"], into["generation"] = level.tier, slots, level.generations[slots]
                yield True
        seconds = lease.until - self._clock()
        one.answer(Lent(lease.number, first, held, max(0.0, seconds), rows, chain[:end]))

    def _deepest(self, locate: Locate) -> Entry | None:
        for pages, key in locate.rungs:
            entry = self._cache.find(key)
            if entry is not None and entry.depth == pages * PAGE_TOKENS:
                return entry
        return None

    def _must_wait(self, chain: list[Entry], one: _Ask) -> bool:
        """What can be read nowhere is brought to the host; the answer waits for the first page that is asked for."""
        ready = self._ready(chain)
        below = chain[ready : min(_held(chain), ready + STAGED)]
        if not below:
            return False
        self._cache.to_host(below)
        return ready <= one.locate.first and self._clock() < one.until

    def _ready(self, chain: Sequence[Entry]) -> int:
        """Leading pages that can be read where they are."""
        return max(_leading(chain, level) for level in self._cache.readable)


def _leading(chain: Sequence[Entry], level: Level[Any]) -> int:
    """Leading pages that are in the tier."""
    return bisect_left(chain, True, key=lambda entry: level.page_of(entry) == GONE)


def _held(chain: Sequence[Entry]) -> int:
    """Leading pages that are still somewhere."""
    return bisect_left(chain, True, key=lambda e: e.page == GONE and e.host is None and e.disk is None)


def _is_of(entry: Entry, namespace: bytes) -> bool:
    """Whether a first page is of the namespace with this digest."""
    return entry.namespace is not None and digest(entry.namespace) == namespace
