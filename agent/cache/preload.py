"""Brings pages from the disk to the host before somebody asks for them: by when, and after whom, a session comes back.

Two guesses, each with its switch. *Rhythm*: a session that came back before comes back after about as long again.
*Graph*: a session that followed another one more often than not does so again, as when agents take turns.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE, Entry

LONGEST_S = 3600.0
"""Sessions with longer gaps are not waited for."""
RETRY_S = 0.25
"""After there was no room on the way."""
SURE = 3
"""Times that a session must have followed another one, and more often than all others together."""
MOST_FOLLOWERS = 16
REMEMBERED = 1 << 14
"""Sessions."""


@dataclass(frozen=True, slots=True)
class PreloadSettings:
    """What an operator has switched on."""

    rhythm: bool = False
    graph: bool = False


@dataclass(slots=True, eq=False)
class _Session:
    number: int
    ended_at: float
    gap_s: float = 0.0
    """Between an end and the next beginning, smoothed; 0: not known yet."""
    spread_s: float = 0.0
    """By how much gaps differ from that, smoothed: as TCP estimates round trips, though with fewer to learn from."""
    away: bool = True
    """Whether nothing of its next turn has come yet."""
    staged: set[int] = field(default_factory=set)
    """Keys of pages that were brought back since its last turn. Each once: one that did not stay will not the next time
    either."""
    followers: Counter[int] = field(default_factory=Counter)
    """How often whose turn was next, by number."""

    def is_awaited(self, ended_at: float, now: float) -> bool:
        """Whether it may still come back from the turn that ended then."""
        return self.away and self.ended_at == ended_at and now <= ended_at + self.gap_s + self.spread_s

    def came(self, gap_s: float) -> None:
        """It is back after so long."""
        if not self.gap_s:
            self.gap_s, self.spread_s = gap_s, gap_s / 2
            return
        error_s = gap_s - self.gap_s
        self.gap_s += error_s / 2
        self.spread_s += (abs(error_s) - self.spread_s) / 2


class Preload:
    """Used by one thread at a time: the engine, or its keeper. Without rhythm and graph it does nothing."""

    def __init__(
        self,
        settings: PreloadSettings,
        find: Callable[[int], Entry | None],
        stage: Callable[[Sequence[Entry]], list[Entry]],
        clock: Callable[[], float],
    ) -> None:
        """`find`: the page under a key. `stage` sends pages that are on the disk to the host, parents first, as far as
        there is room, and returns those."""
        self.pages = 0
        """Brought back on a guess, ever."""
        self.used_pages = 0
        """Of these, pages that were still there when their session came."""
        self._settings = settings
        self._find_page = find
        self._stage = stage
        self._clock = clock
        self._numbers = count()
        self._ends: dict[int, _Session] = {}
        """Sessions by the key of their last page, the one that ended first at the front."""
        self._keys: dict[int, int] = {}
        """These keys by the sessions' numbers."""
        self._due: list[tuple[float, int, float]] = []
        """When to bring back which session, by number, and when its last turn ended: a heap."""
        self._before: _Session | None = None
        """Whose turn began last."""

    def begin(self, keys: Sequence[int]) -> None:
        """A request for these pages has come."""
        before, self._before = self._before, None
        key = self._end_of(keys)
        if key is None:
            return
        session = self._before = self._ends[key]
        if session.away:
            session.away = False
            session.came(self._clock() - session.ended_at)
            self.used_pages += sum(_in_memory(self._find_page(page)) for page in session.staged)
            session.staged.clear()
        if self._settings.graph:
            if before is not None and before is not session:
                before.followers[session.number] += 1
            self._expect_follower(session)

    def end(self, chain: Chain) -> None:
        """A request is done, and its session begins to wait for the next turn."""
        if not chain.entries or not (self._settings.rhythm or self._settings.graph):
            return
        before = self._end_of(chain.keys)
        now = self._clock()
        session = _Session(next(self._numbers), now) if before is None else self._ends.pop(before)
        session.ended_at, session.away = now, True
        last = chain.entries[-1].key
        if (displaced := self._ends.pop(last, None)) is not None:
            del self._keys[displaced.number]
        self._ends[last], self._keys[session.number] = session, last
        if self._settings.rhythm and session.spread_s < session.gap_s <= LONGEST_S:
            heappush(self._due, (now + session.gap_s - session.spread_s, session.number, now))
            if len(self._due) > 2 * REMEMBERED:  # most are of sessions that have come or are forgotten
                self._due = [due for due in self._due if self._awaited(*due[1:]) is not None]
                heapify(self._due)
        if len(self._ends) > REMEMBERED:
            del self._keys[self._ends.pop(next(iter(self._ends))).number]

    def turn(self) -> None:
        """Brings back who is due."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, number, ended_at = heappop(self._due)
            session = self._awaited(number, ended_at)
            if session is not None and not self._bring(session):
                heappush(self._due, (now + RETRY_S, number, ended_at))

    def _awaited(self, number: int, ended_at: float) -> _Session | None:
        """The session, if it may still come back from the turn that ended then."""
        session = self._ends.get(self._keys.get(number, -1))
        return session if session is not None and session.is_awaited(ended_at, self._clock()) else None

    def _bring(self, session: _Session) -> bool:
        """Whether all of its pages are in memory, or on the way there."""
        path: list[Entry] = []
        step = self._find_page(self._keys[session.number])
        while step is not None:
            if not _in_memory(step) and step.key not in session.staged:
                path.append(step)
            step = step.parent
        staged = self._stage(path[::-1]) if path else []
        session.staged.update(entry.key for entry in staged)
        self.pages += len(staged)
        return len(staged) == len(path)

    def _expect_follower(self, session: _Session) -> None:
        followers = session.followers
        if not followers:
            return
        number, times = followers.most_common(1)[0]
        follower = self._ends.get(self._keys.get(number, -1))
        if follower is not None and times >= SURE and 2 * times > followers.total():
            self._bring(follower)
        if len(followers) > MOST_FOLLOWERS:
            session.followers = Counter(dict(followers.most_common(MOST_FOLLOWERS // 2)))

    def _end_of(self, keys: Sequence[int]) -> int | None:
        """The last page of the session that these pages go on: of the one that reached deepest."""
        return next((key for key in reversed(keys) if key in self._ends), None)


def _in_memory(page: Entry | None) -> bool:
    return page is not None and (page.page != GONE or page.host is not None)
