"""Who used which pages, and what that says of whether somebody comes back for them.

What an agent's cache could evict by; so far the comparison alone does. See `docs/develop/eviction.md`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trunkline.kernels.core import Heat

REMEMBERED = 1 << 16
"""Visits: some hours of a busy node. Ends of chains that were evicted are among them, so returns too late are seen."""
AGES = (0, *(int(8 * 2 ** (step / 4)) for step in range(48)))
"""In visits: each class of age is 1.2 times as old as the one before. Coarser ones lose: within a class, age is
nothing."""
PRIOR = 48.0
"""Returns. With less, factors that are all alike are told apart by chance, and the order suffers."""
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


class Visits:
    """A request is two visits: of the pages that it found, the trunk, and of those that it added, the tail. The next
    turn of a conversation comes back for both; another question about the same document for its trunk alone.
    """

    def __init__(self) -> None:
        self.heat = Heat(AGES, _KINDS, _LEVELS, PRIOR, DECAY, REMEMBERED, tiers=1)
        self._ends: dict[int, _End] = {}
        """By the key of the page, the one visited first at the front."""

    def note(self, keys: Sequence[int], found: int, reply_tokens: int) -> tuple[int, int]:
        """A request is done: `keys` of its pages in order, the first `found` of which were there already. The numbers
        of its visits to those, and to the rest."""
        last, depth = self._return(keys)
        uses = last.uses + 1 if last is not None else 1
        gap = self.heat.now - last.visit if last is not None else 0
        turn = last.turn + 1 if last is not None else 1
        trunk = tail = 0
        if found > 0:
            levels: tuple[int, ...] = (_TRUNK + min(uses, _TURNS - 1), _GAP + _scale(gap), _LENGTH + _scale(found))
            kind = 2 + bisect_right(_TRUNK_GAPS, gap)
            trunk = self._open(keys[found - 1], levels, kind, 0, uses)
        if found < len(keys):
            levels = (
                _TURN + min(turn, _TURNS - 1),
                _NEW + _scale(len(keys) - depth),
                _REPLY + _scale(reply_tokens),
                _GAP + _scale(gap),
                _LENGTH + _scale(len(keys)),
            )
            tail = self._open(keys[-1], levels, int(turn > 1), turn, 0)
        while len(self._ends) > REMEMBERED:
            del self._ends[next(iter(self._ends))]
        return trunk or tail, tail or trunk

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
        return visit


def _scale(count: int) -> int:
    """0 for 0 and 1, then one more for each doubling."""
    return min(max(0, count.bit_length() - 1), _SCALE - 1)
