"""Which segments are worth the bytes that they would take in a lower tier: those that would be brought back."""

import math

from trunkline.agent.cache.entry import Member

_WEIGHT = 1 / 8
"""Of the newest fetch in the mean of the last ones."""


class Admission:
    """To one tier. A segment is a run of pages at the end of a path that nothing else hangs on.

    Bringing pages back takes a time for each (its bytes, at the measured speed) and a time of its own (the engine looks
    for them between two steps); computing takes a time for each (the model's). So where a page comes back more quickly
    than it is computed, a segment must still have some pages to be worth it.
    """

    def __init__(self) -> None:
        self._wait_s = 0.0

    def waited(self, pages: int, seconds: float, page_s: float) -> None:
        """A fetch of so many pages, each of which takes so long to copy, was waited for so long."""
        self._wait_s += (max(0.0, seconds - pages * page_s) - self._wait_s) * _WEIGHT

    def least(self, page_s: float, computes_s: float) -> float:
        """Pages that a segment must have: each takes `page_s` to come back (0: not known), `computes_s` to compute
        (inf: not known). Infinite: none is worth it."""
        if page_s >= computes_s:
            return math.inf
        return self._wait_s / (computes_s - page_s)


def reaches(leaf: Member, pages: float) -> bool:
    """Whether the segment that ends with the leaf has so many pages."""
    length, step = 1, leaf
    while length < pages and (base := step.base) is not None and base.children == 1:
        step = base
        length += 1
    return length >= pages
