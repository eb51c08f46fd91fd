"""The cost of a request on a node, in seconds. Pure functions, shared by the router and the simulator.

    cost = work + weight * wait,    weight = 1 - rho, within bounds

The work that a request adds delays everyone behind it; the queue that it joins delays only itself. At utilisation rho
about 1 / (1 - rho) requests suffer from added work for each one that waits, hence the weight.

Work is in seconds of a node like the fleet. What a slower node needs on top is part of the wait there: it delays the
request itself longer, but fewer come by behind it. So a slow node gets its share when queues have grown elsewhere.

Computing again what another node holds makes a copy, which serves those who come for the same prefix. As far as it is
they who fill the queues of its holders, they share the price of it with the request that happens to make it.

The arithmetic over all nodes is the core's (`weigh`, `rank`); tests hold it to what is written here.
"""

import random
import struct
from collections.abc import Sequence

from trunkline.kernels.core import rank as core_rank
from trunkline.kernels.core import weigh as core_weigh
from trunkline.router.scheduler.claims import DEMAND_S
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import SIZES, SMALLEST

NEGLIGIBLE_S = 0.001
"""Costs closer than this are equal: less than the network's own jitter."""
_FULL_S = 1e9
MOST_RANKED = 16
"""Nodes that are told in the order of their costs: nobody tries more."""
_OFFER, _TERMS = struct.Struct("5d"), 5
_MATCHED = struct.Struct("24x d")

Offer = tuple[float, float, float, float, float]
"""What a node could do for a request: work and wait in seconds, its load, 1 when it is full, tokens of the prompt that
it need not compute, and when it last reported (-inf: never). The wait at a fast node may be negative, but never by more
than the work."""
TERMS = ("work_s", "wait_s", "load")
"""Names of an offer's first parts, for people."""


def queue_weight(rho: float, least: float, most: float) -> float:
    """Weight of a second of waiting, against a second of work, at fleet utilisation `rho`; within these bounds."""
    return min(most, max(least, 1.0 - rho))


def weigh(
    board: bytes | bytearray,
    nodes: bytes,
    tiers: bytes,
    claimed: bytes,
    depths: list[int],
    uses: list[float],
    tokens: int,
    prices: Prices,
) -> bytearray:
    """The offers of nodes (u32s, numbers in the index) for a prompt of so many tokens, packed.

        work = prices.seconds(uncached, matched) - what is for others, see below
        wait = max(wait_s - passed[size], promotion) + work * (excess + longer[size])       size = size_of(uncached)
        promotion = tokens in the host tier * host_s + tokens on disk * disk_s

    The second line is of the node's row of the board. What a node has is what `tiers` ((node, device, host, disk) u32s)
    or `claimed` ((node, place in `depths`) u32s, and there the tokens) say, whichever is more. It promotes all, or what
    is in the host tier, or nothing, whichever brings the first token soonest, as nodes decide it; pages come while the
    request waits for its turn. One token at least is always computed.

    Of a piece of the prompt up to one of the `depths` (ascending), which has `holders` and had so many `uses` lately:

        busy = uses / DEMAND_S * work at the nodes that hold most / holders     of the holders' time, all of it at most
        others = busy * uses / (holders + 1)                                    who will come to a new copy
        for others = its prefill * others / (1 + others)

    A wait is for the whole work.
    """
    per_token, per_pair = prices.per_token, prices.per_pair
    return core_weigh(
        board, SIZES, SMALLEST, nodes, tiers, claimed, depths, uses, DEMAND_S, tokens, per_token, per_pair
    )


def unpacked(offers: bytes | bytearray) -> list[Offer]:
    return list(_OFFER.iter_unpack(offers))


def count(offers: bytes | bytearray) -> int:
    return len(offers) // _OFFER.size


def matched(offers: bytes | bytearray, at: int) -> int:
    """Tokens that the node at that position need not compute."""
    tokens: float = _MATCHED.unpack_from(offers, at * _OFFER.size)[0]
    return int(tokens)


def replace(offers: bytearray, at: int, offer: Offer) -> None:
    """Of the node at that position."""
    _OFFER.pack_into(offers, at * _OFFER.size, *offer)


def relieve(offers: bytearray, reliefs: Sequence[float]) -> None:
    """Of each wait so many seconds do not count, for the request overtakes them."""
    with memoryview(offers).cast("d") as terms:
        for at, relief in enumerate(reliefs):
            terms[_TERMS * at + 1] -= relief


def costs(offers: Sequence[Offer], weight: float, limit: float) -> list[float]:
    """Of each offer. Those above `limit` cost more than any below it."""
    return [work + weight * wait + (_FULL_S if load > limit else 0.0) for work, wait, load, _, _ in offers]


def near_bound(best: float, tie: float) -> float:
    """Costs up to this are as good as the best one."""
    full = _FULL_S if best >= _FULL_S else 0.0
    return full + (best - full) * (1.0 + tie) + NEGLIGIBLE_S


def rank(offers: bytes | bytearray, weight: float, limit: float, tie: float, chance: random.Random) -> list[int]:
    """Positions of the best offers, MOST_RANKED at most, best first. `weight` is of the wait.

    Nodes above `limit` come after those below it: a hit does not excuse joining a full node. Among those whose costs
    differ by less than the share `tie`, chance decides, but never for one that is worse in work and wait.
    """
    return core_rank(offers, weight, limit, _FULL_S, tie, NEGLIGIBLE_S, chance.random(), MOST_RANKED)
