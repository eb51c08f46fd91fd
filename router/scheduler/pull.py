"""Bringing a prefix from the node that holds it, instead of computing it again.

A pull takes no time of the engine: it runs while the request waits for its turn, and while the first chunk after it is
computed. So it is a wait, and what is left to compute is the work:

    work = prefill of what nobody holds + found * prefill of what is pulled, where it pushes something out
    wait = the longer one of the node's wait and the pull, which waits for other pulls of both nodes

A pulled prefix is a second copy. In a full cache it takes the place of as many tokens, for as long as tokens stay.
Those would have been found again as often as tokens are: of a share r of all prompt tokens that are found, r / (1 - r)
times (`found`). What is pushed out first is what is least wanted, so it counts once at most. And where so much waits
already that it would push the copy out before its turn comes, nothing is pulled.
"""

from collections.abc import Sequence
from heapq import nsmallest

import msgspec

from trunkline.router.scheduler.cost import Offer
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import size_of

LATENCY_S = 0.001
"""From asking for pages to the first byte; more hardly matters against what a pull saves."""
READERS = 4
"""Nodes, those with the shortest waits, that are considered as readers for a request."""


class Pull(msgspec.Struct, frozen=True, gc=False):
    """What a node could do for a request if it pulled `tokens` more of the prefix from the node at `source`."""

    source: int
    tokens: int
    offer: Offer


def pulls(
    loads: Sequence[NodeLoad],
    held: dict[int, int],
    source: int,
    tokens: int,
    prices: Prices,
    weight: float,
    offers: Sequence[Offer],
    found: float,
    now: float,
) -> dict[int, Pull]:
    """By position, for nodes that are better off with a pull than with their offer.

    `held`: tokens of the prompt by position; `source` holds most of them.
    """
    longest = held[source]
    uncached = max(1, tokens - longest)
    size, lender = size_of(uncached), loads[source]
    rest_s = prices.seconds(uncached, tokens - uncached)
    better = {}
    waits = [load.wait_s - load.passed[size] for load in loads]
    for at in nsmallest(READERS, range(len(loads)), key=waits.__getitem__):
        load, own = loads[at], held.get(at, 0)
        count = longest - own
        if count <= 0 or not load.link.rate or load.pending + count > load.spare:
            continue
        own_work, own_wait, fill, _, told_at = offers[at]
        work = rest_s + (found * prices.seconds(count, own) if count > load.room.value else 0.0)
        hidden_s = min(rest_s, load.step_tokens * prices.per_token)
        pull_s = LATENCY_S + load.link.seconds(lender.link, count, now) - hidden_s
        wait = max(waits[at], pull_s) + rest_s * (load.excess + load.longer[size])
        if work + weight * wait < own_work + weight * own_wait:
            better[at] = Pull(source, count, (work, wait, fill, longest, told_at))
    return better


def lender(loads: Sequence[NodeLoad], held: dict[int, int], now: float) -> int | None:
    """The position of the node to pull from: of those that hold most and lend, the one whose link is free first."""
    most, best = 0, None
    for at, count in held.items():
        link = loads[at].link
        if link.rate and (count > most or (count == most and link.busy_s(now) < loads[best or 0].link.busy_s(now))):
            most, best = count, at
    return best
