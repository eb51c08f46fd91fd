"""The tree of the prefixes that many requests share, made from the key chains of those requests.

A key stands for everything before it, so chains that are sorted have those that begin alike side by side, and what a
run of them shares is what its first and its last share. A node of the tree is such a run; its children are the runs
that go on with the same key:

    sorted chains    a b c d       [a b] 5 ── [a b c] 3 ── ...
                     a b c d e           └─── [a b x] 2
                     a b c f
                     a b x
                     a b x y
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, groupby

import msgspec

from trunkline.router.scheduler.claims import spanned

KEY_BYTES = 8
SAME = 0.8
"""A prefix of which so large a share of the requests goes on together, and of the others each its own way, is shown as
the longer one."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a request that was served."""

    chain: bytes
    """Sample of its keys, u64s; see `scheduler/claims.py`."""
    keys: int
    """In the whole sample: of a very long prompt `chain` is only the beginning."""
    tokens: int
    matched: int
    """Tokens that the node was expected to have, and not to compute."""
    model: str


class Prefix(msgspec.Struct, eq=False):
    """What several requests begin with."""

    chain: bytes
    """Sample of its keys."""
    model: str
    requests: int
    tokens: int
    """Length, estimated."""
    saved: int
    """Tokens of this prefix that were not computed, of all these requests together."""
    parent: "Prefix | None"

    @property
    def key(self) -> str:
        """Of its end, in hex."""
        return self.chain[: -KEY_BYTES - 1 : -1].hex()


def tree(requests: Sequence[Request], most: int) -> list[Prefix]:
    """The prefixes that saved most, at most so many, each after its parent, whose requests include its own."""
    ordered = sorted(requests, key=lambda request: request.chain)
    found: list[Prefix] = []
    waiting: list[tuple[int, int, Prefix, Sequence[Request]]] = []
    numbers = count()

    def add(parent: Prefix | None, run: Sequence[Request], start: int) -> None:
        """Queues what the run shares beyond `start`, in bytes, split by the next key."""
        for shared in _runs(run, start):
            end = shared_bytes(shared[0].chain, shared[-1].chain)
            while True:  # As long as nearly all go on together, and no two of the others do.
                longer = _runs(shared, end)
                if len(longer) != 1 or len(longer[0]) < SAME * len(shared):
                    break
                (shared,) = longer
                end = shared_bytes(shared[0].chain, shared[-1].chain)
            prefix = _prefix(shared, end, parent)
            heappush(waiting, (-prefix.saved, next(numbers), prefix, shared))

    add(None, ordered, 0)
    while waiting and len(found) < most:
        *_, prefix, run = heappop(waiting)
        found.append(prefix)
        add(prefix, run, len(prefix.chain))
    return found


def shared_bytes(one: bytes, other: bytes) -> int:
    """Bytes of the keys that both begin with."""
    low, high = 0, min(len(one), len(other)) // KEY_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * KEY_BYTES, middle * KEY_BYTES
        if one[start:end] == other[start:end]:
            low = middle
        else:
            high = middle - 1
    return low * KEY_BYTES


def _runs(ordered: Sequence[Request], start: int) -> list[Sequence[Request]]:
    """Neighbours that go on alike after `start` bytes, if they are two or more."""
    runs, at = [], 0
    for following, group in groupby(ordered, key=lambda request: request.chain[start : start + KEY_BYTES]):
        size = sum(1 for _ in group)
        if size > 1 and following:
            runs.append(ordered[at : at + size])
        at += size
    return runs


def _prefix(run: Sequence[Request], end: int, parent: Prefix | None) -> Prefix:
    chain = run[0].chain[:end]
    keys = end // KEY_BYTES
    # Every request says how long the prefix is, by its own keys and tokens; the longest says it best.
    longest = max(run, key=lambda request: request.keys)
    whole = spanned(longest.keys)
    tokens = max(1, round(longest.tokens * spanned(keys) / whole))
    saved = sum(min(request.matched, tokens) for request in run)
    return Prefix(chain, run[0].model, len(run), tokens, saved, parent)
