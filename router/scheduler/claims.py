"""Claims: what nodes will hold because of what was just placed on them.

A placement is claimed at once, so that the next request of a burst goes where the first one is being computed. For a
node with exact events a claim bridges the seconds until its events tell the truth; for a node without events claims
are all that is known.

Two generations bound age and memory, without bookkeeping per key:

    insert -> [ young ]      [ old ]      match = best of both
    when young is ttl/2 old, or holds max_keys/2 keys: old is dropped, young becomes old, a new young begins

A chain is inserted as a whole, so what is used stays in the young generation, and what is not used for between ttl/2
and ttl is forgotten.
"""

from array import array
from collections.abc import Callable

from trunkline.kernels.core import PrefixIndex

_KEY_BYTES = 8
_TIER = 0


class Claims:
    """Keys that nodes are taken to hold. A depth is a number of keys: the claim on key i has depth i + 1."""

    def __init__(
        self, ttl: float, max_keys: int, clock: Callable[[], float], index: Callable[..., PrefixIndex] = PrefixIndex
    ) -> None:
        self._half_ttl = ttl / 2
        self._half_keys = max_keys // 2
        self._clock = clock
        self._index = index
        self._young, self._old = self._generation(), self._generation()
        self._young_keys = 0
        """Insertions into the young generation; at least its distinct keys."""
        self._born = clock()
        self._depths = memoryview(array("I", range(1, 4097)))
        self.rotations = 0

    def match(self, keys: bytes) -> dict[int, int]:
        """Number of leading keys claimed, by node index."""
        held = _counts(self._old.match(keys))
        for node, count in _counts(self._young.match(keys)).items():
            if count > held.get(node, 0):
                held[node] = count
        return held

    def insert(self, node: int, keys: bytes) -> None:
        """Claims the whole chain for the node."""
        self._rotate()
        size = len(keys) // _KEY_BYTES
        known = _counts(self._young.match(keys)).get(node, 0)
        if known >= size:
            return
        added = min(size - known, self._half_keys)
        if size > len(self._depths):
            self._depths = memoryview(array("I", range(1, 2 * size + 1)))
        stop = known + added
        tail = memoryview(keys)[known * _KEY_BYTES : stop * _KEY_BYTES]
        self._young.store(node, tail, self._depths[known:stop], _TIER)
        self._young_keys += added

    def forget(self, node: int) -> None:
        """Every claim on the node is void."""
        self._young.clear(node)
        self._old.clear(node)

    def keys(self) -> int:
        """Distinct keys held, those in both generations counted twice."""
        return self._young.stats()["keys"] + self._old.stats()["keys"]

    def _rotate(self) -> None:
        now = self._clock()
        if now < self._born + self._half_ttl and self._young_keys < self._half_keys:
            return
        self._old, self._young = self._young, self._generation()
        if now >= self._born + 2 * self._half_ttl:  # Nothing was inserted for so long that both are too old.
            self._old = self._generation()
        self._young_keys = 0
        self._born = now
        self.rotations += 1

    def _generation(self) -> PrefixIndex:
        # The bound is enforced by rotation; twice as many keys is room for the insertion that crosses it.
        return self._index(max_keys=2 * self._half_keys)


def _counts(packed: bytes) -> dict[int, int]:
    """From (node, device, host, disk) u32s."""
    flat = memoryview(packed).cast("I")
    return dict(zip(flat[0::4], flat[1::4], strict=True)) if flat else {}
