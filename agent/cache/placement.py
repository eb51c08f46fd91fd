"""Which slots of the disk a page goes to: pages that are expected to stay long and others apart.

What goes together then leaves its slots together, and what comes next is written there in few large requests. See
`docs/develop/disk.md`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trunkline.kernels.core import PagePool

GROUP = 64
"""Neighbouring slots that are hot or cold together; the pool's own."""
SAME = 2.0
"""A group of the same kind is as good as one of the other kind with so many times its free slots."""


class Placement:
    """A kind is a preference: where one has no room the other's is taken, so nothing has to go for it."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.hot = np.zeros(pool.total, np.bool_)
        """[slots]: of which kind what was last written there is."""
        self._groups = np.zeros(-(-pool.total // GROUP), np.bool_)
        """[groups]: which are hot."""
        self._open: dict[bool, int] = {}
        """Of each kind the group that was written to last."""

    def take(self, hot: Sequence[bool]) -> list[int] | None:
        """A slot for each page, of which it is said whether it is hot. None: there are too few."""
        if len(hot) > self._pool.free:
            return None
        slots = {kind: iter(self._some(kind, hot.count(kind))) for kind in set(hot)}
        taken = [next(slots[kind]) for kind in hot]
        self.hot[taken] = hot
        return taken

    def adopt(self, slots: npt.NDArray[np.unsignedinteger], hot: npt.NDArray[np.bool_]) -> None:
        """These have pages from before; a group is as most of its pages are."""
        self.hot[slots] = hot
        self._groups = np.bincount(slots // GROUP, np.where(hot, 1.0, -1.0), len(self._groups)) > 0

    def _some(self, kind: bool, count: int) -> list[int]:
        free = np.frombuffer(self._pool.free_in_groups(), np.uint8).astype(np.float64)
        score = np.where((self._groups == kind) | (free == GROUP), SAME, 1.0) * free
        if (own := self._open.get(kind)) is not None and free[own]:
            score[own] = np.inf  # until it is full
        if (other := self._open.get(not kind)) is not None and free[other]:
            score[other] = 0.5  # after all others
        order = np.argsort(-score, kind="stable")
        groups = order[: 1 + int(np.searchsorted(np.cumsum(free[order]), count))]
        self._groups[groups] = kind
        self._open[kind] = int(groups[-1])
        return self._pool.allocate(count, groups.tolist()) or []
