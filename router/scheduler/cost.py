"""The cost of a request on a node, in seconds. Pure functions, shared by the router and the simulator.

    cost = work + weight * (wait + drag),    weight = 1 - rho, within bounds

The work that a request adds delays everyone behind it; the queue that it joins delays only itself. At utilisation rho
about 1 / (1 - rho) requests suffer from added work for each one that waits, hence the weight. Rho is the share of its
time that the fleet needs for prefill, or the share in use of its batches or of its KV, node by node whichever is most.

Work is in seconds of a node like the fleet. What a slower node needs on top weighs like a wait there (`drag`): it
delays the request itself longer, but fewer come by behind it. So a slow node gets its share when queues have grown
elsewhere.

    work = prices.seconds(uncached, matched) - what is for others, see below
    wait = max(wait_s - passed[size], promotion)                                size = size_of(uncached)
    drag = work * (excess + longer[size])
    promotion = tokens in the host tier * host_s + tokens on disk * disk_s

The second and third line are of the node's rows of the board. What a node has is what its summary or a claim says,
whichever is more. It promotes all, or what is in the host tier, or nothing, whichever brings the first token soonest,
as nodes decide it; pages come while the request waits for its turn. One token at least is always computed.

Computing again what another node holds makes a copy, which serves those who come for the same prefix. As far as it is
they who fill the queues of its holders, they share the price of it with the request that happens to make it. Of a piece
of the prompt that has `holders` and had so many `uses` lately, up to where a claim on it ends:

    busy = uses / DEMAND_S * work at the nodes that hold most / holders     of the holders' time, all of it at most
    others = busy * uses / (holders + 1)                                    who will come to a new copy
    for others = its prefill * others / (1 + others)

The drag is of the whole work.

A node may also pull what it lacks from the node that holds most of it and whose link is free first. That takes no time
of the engine: it runs while the request waits for its turn, and while the first chunk after it is computed. So it is a
wait, and what is left to compute is the work:

    work = prefill of what nobody holds + found * prefill of what is pulled, where it pushes something out
    wait = the longer one of the node's wait and the pull, which waits for other pulls of both nodes

A pulled prefix is a second copy. In a full cache it takes the place of as many tokens, for as long as tokens stay.
Those would have been found again as often as tokens are: of a share r of all prompt tokens that are found, r / (1 - r)
times (`found`). What is pushed out first is what is least wanted, so it counts once at most. And where so much waits
already that it would push the copy out before its turn comes, nothing is pulled. What is only claimed is not there yet,
so nobody lends it.

Nodes above the load limit come after those below it: a hit does not excuse joining a full node. Among those whose costs
are nearly the same chance decides, but never for one that is worse in work and wait.

The arithmetic over all nodes is the core's (`Ranker`); tests hold it to what is written here.
"""

from collections.abc import Sequence

from trunkline.kernels.core import Ranker
from trunkline.router.scheduler.board import Board
from trunkline.router.scheduler.claims import DEMAND_S, DENSE, STRIDE
from trunkline.router.scheduler.sizes import SIZES, SMALLEST
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.names import TEXT_CHUNK

NEGLIGIBLE_S = 0.001
"""Costs closer than this are equal: less than the network's own jitter."""
_FULL_S = 1e9
MOST_RANKED = 16
"""Nodes that are told in the order of their costs: nobody tries more."""
_PULL_LATENCY_S = 0.001
"""From asking for pages to the first byte; more hardly matters against what a pull saves."""
_READERS = 4
"""Nodes, those with the shortest waits, that are considered as readers for a request."""

Offer = tuple[float, float, float, float, float, float]
"""What a node could do for a request: work, wait and drag in seconds, its load, 1 when it is full, tokens of the prompt
that it need not compute, and when it last reported (-inf: never). The drag of a fast node is negative, but never by
more than the work."""
TERMS = ("work_s", "wait_s", "drag_s", "load")
"""Names of an offer's first parts, for people."""


def ranker(board: Board, settings: SchedulerSettings) -> Ranker:
    """The core's, with the numbers that the policy consists of."""
    return Ranker(
        board.accounts,
        board.passing,
        board.links,
        sizes=SIZES,
        smallest=SMALLEST,
        chunk=TEXT_CHUNK,
        dense=DENSE,
        stride=STRIDE,
        memory_s=DEMAND_S,
        limit=settings.load_limit,
        full_s=_FULL_S,
        tie=settings.tie,
        negligible_s=NEGLIGIBLE_S,
        most=MOST_RANKED,
        latency_s=_PULL_LATENCY_S,
        readers=_READERS,
    )


def queue_weight(rho: float, least: float, most: float) -> float:
    """Weight of a second of waiting, against a second of work, at fleet utilisation `rho`; within these bounds."""
    return min(most, max(least, 1.0 - rho))


def costs(offers: Sequence[Offer], weight: float, limit: float) -> list[float]:
    """Of each offer. Those above `limit` cost more than any below it."""
    return [work + weight * (wait + drag) + (_FULL_S if load > limit else 0.0) for work, wait, drag, load, *_ in offers]


def near_bound(best: float, tie: float) -> float:
    """Costs up to this are as good as the best one."""
    full = _FULL_S if best >= _FULL_S else 0.0
    return full + (best - full) * (1.0 + tie) + NEGLIGIBLE_S
