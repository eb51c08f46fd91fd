"""Claims: what nodes will hold because of what was just placed on them.

A placement is claimed at once, so that the next request of a burst goes where the first one is being computed. For a
node with exact events a claim bridges the seconds until its events tell the truth; for a node without events claims
are all that is known.

Two generations bound age and memory, without bookkeeping per key:

    insert -> [ young ]      [ old ]      match = best of both
    when young is ttl/2 old, or holds max_keys/2 keys: old is dropped, young becomes old, a new young begins

A chain is inserted as a whole, so what is used stays in the young generation, and what is not used for between ttl/2
and ttl is forgotten.

Claims also know how often a prefix is asked for: a placement counts for every prefix that it shares with a young claim.

Of a long chain only a sample is kept: DENSE keys, then every STRIDE-th, and the last. That is a quarter of the time
and memory; a prompt that is sent again is matched as a whole, and one that goes on differently short by at most
STRIDE - 1 keys.
"""

from collections.abc import Callable

from trunkline.kernels.core import Generations
from trunkline.kernels.core import sample as every
from trunkline.kernels.core import spanned as keys_of

DENSE, STRIDE = 32, 4
DEMAND_S = 10.0
"""How far back it counts that a prefix was asked for: long enough to tell a rate, short enough to follow it."""


def sample(keys: bytes) -> bytes:
    """The keys of a chain that claims are about."""
    return every(keys, DENSE, STRIDE)


def spanned(count: int) -> int:
    """How many keys of a chain that is long enough so many leading keys of its sample stand for."""
    return keys_of(count, DENSE, STRIDE)


class Claims:
    """Samples of chains that nodes are taken to hold."""

    def __init__(self, ttl: float, max_keys: int, clock: Callable[[], float]) -> None:
        self._half_ttl = ttl / 2
        self._half_keys = max_keys // 2
        self._clock = clock
        # The bound is enforced by rotation; twice as many keys is room for the insertion that crosses it.
        self.generations = Generations(2 * self._half_keys, DEMAND_S)
        """As the core reads them."""
        self.match = self.generations.given
        """Who has claims on a sample as of now: (node index, place in the lists) u32s; the lists say how many leading
        keys that is, and how many placements in `DEMAND_S` share as many with one before, if it goes on as lately."""
        self.forget = self.generations.clear
        """Every claim on the node is void."""
        self.keys = self.generations.keys
        """Distinct keys held, those in both generations counted twice."""
        self._young_keys = 0
        """Insertions into the young generation; at least its distinct keys."""
        self._born = clock()

    def last(self, ttl: float) -> None:
        """From now on claims are kept so many seconds."""
        self._half_ttl = ttl / 2

    def insert(self, node: int, sampled: bytes) -> None:
        """Claims the whole sample for the node."""
        now = self._clock()
        if self._young_keys >= self._half_keys or now >= self._born + self._half_ttl:
            silent = now >= self._born + 2 * self._half_ttl  # Nothing was inserted for so long that both are too old.
            self.generations.turn(silent)
            self._young_keys = 0
            self._born = now
        self._young_keys += self.generations.give(node, sampled, self._half_keys, now)
