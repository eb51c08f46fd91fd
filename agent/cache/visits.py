"""Who used which pages, and what that says of whether somebody comes back for them: by that, who goes first.

See `docs/develop/eviction.md`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trunkline.agent.cache.duel import Duel
from trunkline.agent.cache.protected import Protected
from trunkline.kernels.core import Heat
from trunkline.shared.names import Tier

REMEMBERED = 1 << 16
"""Visits: some hours of a busy node. Ends of chains that were evicted are among them, so returns too late are seen."""
AGES = (0, *(int(8 * 2 ** (step / 4)) for step in range(48)))
"""In visits: each class of age is 1.2 times as old as the one before. Coarser ones lose: within a class, age is
nothing."""
PRIOR = 12.0
"""Returns. With less, factors that are all alike are told apart by chance; with more, they are learned later."""
DECAY = 0.02
"""Half of what was learned is forgotten in 2,200 visits, so that traffic may change."""

_TURNS, _SCALE = 7, 20
_TURN, _NEW, _REPLY, _GAP, _LENGTH, _TRUNK = 0, 7, 27, 47, 67, 87
_LEVELS = _TRUNK + _TURNS
_TRUNK_GAPS = (64, 256, 1024)
"""In visits. A page that is used often is given up soon after it is not: trunks of each pace have their own rates."""
_KINDS = 2 + len(_TRUNK_GAPS) + 1


class _End(NamedTuple):
    """The last page of a run that somebody used, and may use again."""

    visit: int
    turn: int
    uses: int


class Visit(NamedTuple):
    """A request that has begun, and what is known of it by then."""

    key: int
    """Of its last page."""
    pages: int
    found: int
    """Pages that were there: the trunk."""
    trunk: int
    """The number of the visit to them; 0 if there are none."""
    new: int
    """Pages beyond where an earlier visit ended."""
    turn: int
    gap: int
    """Visits since the turn before."""
    began: int
    """The number of the last visit at the time: pages that come for the request are as of then, until it ends."""


class Visits:
    """A request is two visits: of the pages that it found, the trunk, and of those that it added, the tail. The next
    turn of a conversation comes back for both; another question about the same document for its trunk alone.

    Used from one thread.
    """

    def __init__(self, pages: int) -> None:
        """`pages`: of the device."""
        self.protected = Protected(pages)
        self.heat = Heat(AGES, _KINDS, _LEVELS, PRIOR, DECAY, REMEMBERED, tiers=3 * len(Tier))
        """Of the tiers; then, for each, those of its duel."""
        self.duels: dict[Tier, Duel] = {}
        self._start = self.heat.now
        self._ends: dict[int, _End] = {}
        """By the key of the page, the one visited first at the front."""

    def open(self, tier: Tier, pages: int) -> None:
        """The tier has so many pages, none of which is offered."""
        self.heat.clear(tier)
        self.duels[tier] = Duel(pages, self.heat, len(Tier) + 2 * tier)

    def take(self, tier: Tier) -> int | None:
        """Of the pages offered in the tier the one to go, which is no longer offered. None: there is none."""
        return self.heat.take(tier) if self.duels[tier].learned else self.heat.take_oldest(tier)

    def begin(self, keys: Sequence[int], found: int) -> Visit | None:
        """A request for these pages, in order, has come; the first `found` are there. None: it is for no page."""
        if not keys:
            return None
        self.protected.core.request(keys)
        last, depth = self._return(keys)
        gap = self.heat.now - last.visit if last is not None else 0
        turn = last.turn + 1 if last is not None else 1
        trunk = 0
        if found > 0:
            uses = last.uses + 1 if last is not None else 1
            levels = (_TRUNK + min(uses, _TURNS - 1), _GAP + _scale(gap), _LENGTH + _scale(found))
            trunk = self._open(keys[found - 1], levels, 2 + bisect_right(_TRUNK_GAPS, gap), 0, uses)
        return Visit(keys[-1], len(keys), found, trunk, len(keys) - depth, turn, gap, self.latest())

    def end(self, visit: Visit, keys: Sequence[int], reply_tokens: int) -> int:
        """The request for these pages is done. The number of its visit to those that it added, or else to the trunk."""
        tail = visit.trunk if visit.found == visit.pages else self._tail(visit, reply_tokens)
        for duel in self.duels.values():
            duel.request(keys[: visit.pages], visit.found, visit.trunk, tail)
        return tail

    def _tail(self, visit: Visit, reply_tokens: int) -> int:
        levels = (
            _TURN + min(visit.turn, _TURNS - 1),
            _NEW + _scale(visit.new),
            _REPLY + _scale(reply_tokens),
            _GAP + _scale(visit.gap),
            _LENGTH + _scale(visit.pages),
        )
        return self._open(visit.key, levels, int(visit.turn > 1), visit.turn, 0)

    def blank(self) -> int:
        """The number of a visit of which nothing is known but when it was: now."""
        return self.heat.visit(())

    def latest(self) -> int:
        """The number of the last visit."""
        return self.heat.now - 1

    def before(self, rank: int) -> int:
        """For pages from before the start, the last used of which has rank 0."""
        return max(0, self._start - 1 - rank)

    def _return(self, keys: Sequence[int]) -> tuple[_End | None, int]:
        """Earlier visits to what the chain goes through return. The one that reached deepest, and how many pages."""
        last, depth = None, 0
        for index, key in enumerate(keys):
            end = self._ends.pop(key, None)
            if end is not None:
                self.heat.returned(end.visit)
                last, depth = end, index + 1
        return last, depth

    def _open(self, key: int, levels: Sequence[int], kind: int, turn: int, uses: int) -> int:
        visit = self.heat.visit(levels, kind)
        self._ends[key] = _End(visit, turn, uses)
        while len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]
        return visit


def _scale(count: int) -> int:
    """0 for 0 and 1, then one more for each doubling."""
    return min(max(0, count.bit_length() - 1), _SCALE - 1)
