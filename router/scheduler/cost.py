"""The cost of a request on a node, in seconds. Pure functions, shared by the router and the simulator.

    cost = work + weight * wait,    weight = 1 - rho

The work that a request adds delays everyone behind it; the queue that it joins delays only itself. At utilisation rho
about 1 / (1 - rho) requests suffer from added work for each one that waits, hence the weight.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

MIN_WEIGHT = 0.05
"""Of the wait, however busy the fleet: a queue always counts for something."""
NEGLIGIBLE_S = 0.001
"""Costs closer than this are equal: less than the network's own jitter."""


class Offer(NamedTuple):
    """What a node could do for a request. `number` is the caller's. Seconds; `load` is 1 when the node is full."""

    number: int
    work: float
    wait: float
    load: float


def queue_weight(rho: float) -> float:
    """Weight of a second of waiting, against a second of work, at fleet utilisation `rho`."""
    return min(1.0, max(MIN_WEIGHT, 1.0 - rho))


def rank(offers: Sequence[Offer], rho: float, limit: float, tie: float, chance: random.Random) -> list[int]:
    """Numbers of all offers, best first.

    Nodes above `limit` come after those below it: a hit does not excuse joining a full node. Among those whose costs
    differ by less than the share `tie`, chance decides, but never for one that is worse in work and wait.
    """
    weight = queue_weight(rho)
    costs = sorted([(offer[3] > limit, offer[1] + weight * offer[2], offer) for offer in offers], key=_by_cost)
    full, best, _ = costs[0]
    bound = best * (1.0 + tie) + NEGLIGIBLE_S
    near = 1
    while near < len(costs) and costs[near][0] is full and costs[near][1] <= bound:
        near += 1
    if near > 1:
        chosen = _choose([entry[2] for entry in costs[:near]], chance)
        costs.insert(0, costs.pop(chosen))
    return [entry[2].number for entry in costs]


def _by_cost(entry: tuple[bool, float, Offer]) -> tuple[bool, float]:
    return entry[0], entry[1]


def _choose(near: list[Offer], chance: random.Random) -> int:
    """A random position among those that no other one beats in work or wait without losing in the other."""
    best = [
        position
        for position, one in enumerate(near)
        if not any(
            other.work <= one.work and other.wait <= one.wait and (other.work < one.work or other.wait < one.wait)
            for other in near
        )
    ]
    return best[int(chance.random() * len(best))]
