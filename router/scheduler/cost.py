"""The cost of a request on a node, in seconds. Pure functions, shared by the router and the simulator.

    cost = work + weight * wait,    weight = 1 - rho, within bounds

The work that a request adds delays everyone behind it; the queue that it joins delays only itself. At utilisation rho
about 1 / (1 - rho) requests suffer from added work for each one that waits, hence the weight.

Work is in seconds of a node like the fleet. What a slower node needs on top is part of the wait there: it delays the
request itself longer, but fewer come by behind it. So a slow node gets its share when queues have grown elsewhere.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import size_of

MIN_WEIGHT, MAX_WEIGHT = 0.05, 0.5
"""Of the wait. However busy the fleet, a queue counts for something; however idle, computing a prefix again costs more
than waiting for it as long: a second copy of it takes the place of something else in a cache."""
NEGLIGIBLE_S = 0.001
"""Costs closer than this are equal: less than the network's own jitter."""
_FULL_S = 1e9

Offer = tuple[float, float, float]
"""What a node could do for a request: work and wait in seconds, and its load, 1 when it is full. The wait at
a fast node may be negative, but never by more than the work."""
TERMS = ("work_s", "wait_s", "load")
"""Names of an offer's parts, for people."""


def queue_weight(rho: float) -> float:
    """Weight of a second of waiting, against a second of work, at fleet utilisation `rho`."""
    return min(MAX_WEIGHT, max(MIN_WEIGHT, 1.0 - rho))


class Account(Protocol):
    """What the cost needs to know of a node; `NodeLoad` is one, and so is what a decision kept of it."""

    @property
    def waits(self) -> Sequence[float]: ...
    @property
    def drags(self) -> Sequence[float]: ...
    @property
    def fill(self) -> float: ...


def offer(account: Account, uncached: int, work: float) -> Offer:
    """What a node could do for a request that is so many tokens and seconds of work for a node like the fleet."""
    size = size_of(uncached)
    return work, account.waits[size] + work * account.drags[size], account.fill


def weigh(
    accounts: Sequence[Account], positions: Mapping[int, int], held: Mapping[int, int], tokens: int, prices: Prices
) -> list[Offer]:
    """What each node could do for a prompt of so many tokens, of which nodes hold some.

    `held` is by the node's number in the index, `positions` says where in `accounts` that is.
    """
    seconds = prices.seconds
    new, size = seconds(tokens, 0), size_of(tokens)
    offers = [(new, account.waits[size] + new * account.drags[size], account.fill) for account in accounts]
    last = -1
    for index, matched in held.items():
        at = positions.get(index)
        if at is not None:
            if matched != last:  # Many nodes hold the same.
                last, uncached = matched, max(1, tokens - matched)
                work, size = seconds(uncached, tokens - uncached), size_of(uncached)
            account = accounts[at]
            offers[at] = (work, account.waits[size] + work * account.drags[size], account.fill)
    return offers


def relieved(offers: Sequence[Offer], reliefs: Sequence[float]) -> list[Offer]:
    """Of each wait so many seconds do not count, for the request overtakes them."""
    return [(work, wait - relief, load) for (work, wait, load), relief in zip(offers, reliefs, strict=True)]


def costs(offers: Sequence[Offer], weight: float, limit: float) -> list[float]:
    """Of each offer. Those above `limit` cost more than any below it."""
    return [work + weight * wait + (_FULL_S if load > limit else 0.0) for work, wait, load in offers]


def near_bound(best: float, tie: float) -> float:
    """Costs up to this are as good as the best one."""
    full = _FULL_S if best >= _FULL_S else 0.0
    return full + (best - full) * (1.0 + tie) + NEGLIGIBLE_S


def rank(offers: Sequence[Offer], weight: float, limit: float, tie: float, chance: random.Random) -> list[int]:
    """Positions of all offers, best first. `weight` is of the wait.

    Nodes above `limit` come after those below it: a hit does not excuse joining a full node. Among those whose costs
    differ by less than the share `tie`, chance decides, but never for one that is worse in work and wait.
    """
    prices = costs(offers, weight, limit)
    order = sorted(range(len(prices)), key=prices.__getitem__)
    bound = near_bound(prices[order[0]], tie)
    near = 1
    while near < len(order) and prices[order[near]] <= bound:
        near += 1
    if near > 1:
        order.insert(0, order.pop(_choose(offers, order[:near], chance)))
    return order


def _choose(offers: Sequence[Offer], near: list[int], chance: random.Random) -> int:
    """Where in `near` the choice falls: anywhere, unless another one is better in work or wait and worse in neither."""
    chosen = int(chance.random() * len(near))
    work, wait, _ = offers[near[chosen]]
    for position, index in enumerate(near):
        other_work, other_wait, _ = offers[index]
        if other_work <= work and other_wait <= wait and (other_work < work or other_wait < wait):
            chosen, work, wait = position, other_work, other_wait
    return chosen
