"""Claims: what nodes will hold because of what was just placed on them.

A placement is claimed at once, so that the next request of a burst goes where the first one is being computed. For a
node with exact events a claim bridges the seconds until its events tell the truth; for a node without events claims
are all that is known.

Two generations bound age and memory, without bookkeeping per key:

    insert -> [ young ]      [ old ]      match = best of both
    when young is ttl/2 old, or holds max_keys/2 keys: old is dropped, young becomes old, a new young begins

A chain is inserted as a whole, so what is used stays in the young generation, and what is not used for between ttl/2
and ttl is forgotten.

Of a long chain only a sample is kept: DENSE keys, then every STRIDE-th, and the last. That is a quarter of the time
and memory; a prompt that is sent again is matched as a whole, and one that goes on differently short by at most
STRIDE - 1 keys.
"""

from array import array
from collections.abc import Callable

from trunkline.kernels.core import PrefixIndex

DENSE, STRIDE = 32, 4
_KEY_BYTES = 8
_TIER = 0


def sample(keys: bytes) -> bytes:
    """The keys of a chain that claims are about."""
    if len(keys) <= DENSE * _KEY_BYTES:
        return keys
    sparse = memoryview(keys).cast("Q")[DENSE + STRIDE - 1 : -1 : STRIDE]
    return b"".join((keys[: DENSE * _KEY_BYTES], sparse.tobytes(), keys[-_KEY_BYTES:]))


def unsampled(count: int, keys: bytes) -> int:
    """How many keys of the chain the first `count` of its sample stand for."""
    if count <= DENSE:
        return count
    return min(DENSE + (count - DENSE) * STRIDE, len(keys) // _KEY_BYTES)


class Claims:
    """Samples of chains that nodes are taken to hold. A depth is a number of keys: that of key i is i + 1."""

    def __init__(self, ttl: float, max_keys: int, clock: Callable[[], float]) -> None:
        self._half_ttl = ttl / 2
        self._half_keys = max_keys // 2
        self._clock = clock
        self._young, self._old = self._generation(), self._generation()
        self._young_keys = 0
        """Insertions into the young generation; at least its distinct keys."""
        self._born = clock()
        self._depths = memoryview(array("I", range(1, 4097)))

    def match(self, sampled: bytes) -> dict[int, int]:
        """Number of leading keys of the sample claimed, by node index."""
        held = _counts(self._old.match(sampled))
        young = _counts(self._young.match(sampled))
        if not held:
            return young
        for node, count in young.items():
            if count > held.get(node, 0):
                held[node] = count
        return held

    def insert(self, node: int, sampled: bytes) -> None:
        """Claims the whole sample for the node."""
        now = self._clock()
        if self._young_keys >= self._half_keys or now >= self._born + self._half_ttl:
            self._rotate(now)
        size = len(sampled) // _KEY_BYTES
        known = _counts(self._young.match(sampled)).get(node, 0)
        if known >= size:
            return
        added = min(size - known, self._half_keys)
        stop = known + added
        if stop > len(self._depths):
            self._depths = memoryview(array("I", range(1, 2 * stop + 1)))
        tail = memoryview(sampled)[known * _KEY_BYTES : stop * _KEY_BYTES]
        self._young.store(node, tail, self._depths[known:stop], _TIER)
        self._young_keys += added

    def forget(self, node: int) -> None:
        """Every claim on the node is void."""
        self._young.clear(node)
        self._old.clear(node)

    def keys(self) -> int:
        """Distinct keys held, those in both generations counted twice."""
        return self._young.stats()["keys"] + self._old.stats()["keys"]

    def _rotate(self, now: float) -> None:
        silent = now >= self._born + 2 * self._half_ttl  # Nothing was inserted for so long that both are too old.
        self._old = self._generation() if silent else self._young
        self._young = self._generation()
        self._young_keys = 0
        self._born = now

    def _generation(self) -> PrefixIndex:
        # The bound is enforced by rotation; twice as many keys is room for the insertion that crosses it.
        return PrefixIndex(max_keys=2 * self._half_keys)


def _counts(packed: bytes) -> dict[int, int]:
    """From (node, device, host, disk) u32s."""
    flat = memoryview(packed).cast("I")
    return dict(zip(flat[0::4], flat[1::4], strict=True)) if flat else {}
