"""The ranking, as a pure function."""

import math
import random
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.scheduler import board, cost
from trunkline.router.scheduler.claims import DEMAND_S
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import SIZES, size_of

seconds = st.floats(0, 100)
Terms = tuple[float, float, float]
"""Of an offer: work, wait, load."""
BOUNDS = (0.05, 0.5)
"""Of the weight."""
offers = st.lists(st.tuples(seconds, seconds, st.floats(0, 2)), min_size=1, max_size=20)


def packed(given_offers: list[Terms]) -> bytearray:
    offers = bytearray(40 * len(given_offers))
    for at, terms in enumerate(given_offers):
        cost.replace(offers, at, (*terms, 0.0, 0.0))
    return offers


def rank(given_offers: list[Terms], weight: float, limit: float, tie: float, chance: random.Random) -> list[int]:
    """Of the core; the same as of a model in Python that draws the same lot."""
    model = random.Random()
    model.setstate(chance.getstate())
    offers = packed(given_offers)
    order = cost.rank(offers, weight, limit, tie, chance)
    assert order == _ranked(cost.unpacked(offers), weight, limit, tie, model.random())[: cost.MOST_RANKED]
    return order


def _ranked(given_offers: list[cost.Offer], weight: float, limit: float, tie: float, draw: float) -> list[int]:
    costs = cost.costs(given_offers, weight, limit)
    order = sorted(range(len(costs)), key=costs.__getitem__)
    bound = cost.near_bound(costs[order[0]], tie)
    near = [at for at in range(len(costs)) if at == order[0] or costs[at] <= bound]
    part, place = math.modf(draw * len(near))
    chosen = near[int(place)]
    work, wait, *_ = given_offers[chosen]
    for at in near:
        other_work, other_wait, *_ = given_offers[at]
        if other_work <= work and other_wait <= wait:
            work, wait = other_work, other_wait
    if given_offers[chosen][:2] != (work, wait):
        best = [at for at in near if given_offers[at][:2] == (work, wait)]
        chosen = best[int(part * len(best))]
    order.remove(chosen)
    return [chosen, *order]


_nodes = st.lists(st.integers(0, 9), unique=True, max_size=10)
_tokens = st.integers(0, 200_000)
_ROW = 4 + 2 * SIZES


@given(
    _nodes,
    st.lists(st.lists(st.floats(0, 100), min_size=_ROW, max_size=_ROW), min_size=10, max_size=10),
    st.lists(st.tuples(st.integers(0, 12), _tokens, _tokens, _tokens), max_size=6, unique_by=lambda row: row[0]),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=6, unique_by=lambda row: row[0]),
    st.lists(_tokens, min_size=3, max_size=3).map(sorted),
    st.lists(st.floats(0, 100), min_size=3, max_size=3).map(lambda uses: sorted(uses, reverse=True)),
    st.integers(1, 200_000),
)
def test_offers_are_what_the_formulas_say(
    nodes: list[int],
    rows: list[list[float]],
    tiers: list[tuple[int, int, int, int]],
    claimed: list[tuple[int, int]],
    depths: list[int],
    uses: list[float],
    tokens: int,
) -> None:
    accounts, prices = bytearray(), Prices.of(1e-4, 1e-9)
    for node, (wait_s, excess, host_s, disk_s, *by_size) in enumerate(rows):
        row = board.Row(accounts, node)
        row.account(node / 10, -node, wait_s, excess, host_s / 1e4, disk_s / 1e4, node % 3)
        row.passing(*by_size)
    rows_of = [array("I", [number for row in of for number in row]).tobytes() for of in (tiers, claimed)]
    numbers = array("I", nodes).tobytes()
    offers = cost.unpacked(cost.weigh(accounts, numbers, *rows_of, depths, uses, tokens, prices))
    held_by = {node: sum(rest) for node, *rest in tiers}
    for node, place in claimed:
        held_by[node] = max(depths[place], held_by.get(node, 0))
    held_all = [held_by.get(node, 0) for node in nodes]
    for node, (work, wait, load, matched, told_at) in zip(nodes, offers, strict=True):
        wait_s, excess, host_s, disk_s, *by_size = rows[node]
        device, host, disk = next((row[1:] for row in tiers if row[0] == node), (0, 0, 0))
        claim = next((depths[place] for one, place in claimed if one == node), 0)
        if claim >= device + host + disk:
            device, host, disk = claim, 0, 0
        possible: list[tuple[float, tuple[float, float, int]]] = []
        for promoted, on_disk in ((host, disk), (host, 0), (0, 0)):
            held = device + promoted + on_disk
            uncached = max(1, tokens - held)
            size = size_of(uncached)
            own = prices.seconds(uncached, max(0, tokens - uncached))
            passed, longer = (by_size[size], by_size[SIZES + size]) if node % 3 else (0.0, 0.0)
            queue = max(wait_s - passed, (promoted * host_s + on_disk * disk_s) / 1e4)
            charged = own - _for_others(held, held_all, depths, uses, tokens, prices)
            possible.append((queue + own, (charged, queue + own * (excess + longer), held)))
        soonest = min(over for over, _ in possible)
        offer = pytest.approx((work, wait, matched), abs=1e-9)
        assert any(over == pytest.approx(soonest) and one == offer for over, one in possible)
        assert (load, told_at) == (node / 10, -node)


def _for_others(has: int, held: list[int], depths: list[int], uses: list[float], tokens: int, prices: Prices) -> float:
    longest = min(tokens, max(held, default=0))
    own = prices.seconds(max(1, tokens - longest), longest)
    total, start = 0.0, 0
    for depth, count in zip(depths, uses, strict=True):
        end = min(depth, longest)
        if end > start:
            holders = sum(one >= end for one in held)
            others = min(1.0, count / DEMAND_S * own / holders) * count / (holders + 1)
            copied = prices.seconds(max(0, end - max(start, has)), max(start, has))
            total += copied * others / (1 + others)
            start = end
    return total


def test_a_node_without_an_account_is_an_error() -> None:
    with pytest.raises(ValueError, match="row 3"):
        cost.weigh(b"", array("I", [3]).tobytes(), b"", b"", [], [], 10, Prices(1.0))


@given(offers, st.floats(0, 1), st.integers())
def test_ranking_is_a_permutation_and_its_first_is_beaten_by_none(
    given_offers: list[Terms], rho: float, seed: int
) -> None:
    weight = cost.queue_weight(rho, *BOUNDS)
    order = rank(given_offers, weight, 0.9, 0.05, random.Random(seed))
    assert len(set(order)) == len(order) == min(len(given_offers), cost.MOST_RANKED)
    work, wait, load = given_offers[order[0]]
    for other_work, other_wait, other_load in given_offers:
        if (other_load > 0.9) == (load > 0.9):
            assert not (other_work <= work and other_wait <= wait and (other_work < work or other_wait < wait))
    fulls = [given_offers[index][2] > 0.9 for index in order]
    assert fulls == sorted(fulls)


@given(offers, st.floats(0, 1), st.integers())
def test_costs_ascend_but_for_near_ties(given_offers: list[Terms], rho: float, seed: int) -> None:
    weight = cost.queue_weight(rho, *BOUNDS)
    order = rank(given_offers, weight, 10.0, 0.05, random.Random(seed))
    costs = [given_offers[index][0] + weight * given_offers[index][1] for index in order]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= min(costs) * 1.05 + cost.NEGLIGIBLE_S + 1e-6


def test_equal_offers_are_chosen_alike_often() -> None:
    chance = random.Random(5)
    counts = Counter(rank([(1.0, 0.0, 0.0)] * 4, 1.0, 0.9, 0.05, chance)[0] for _ in range(4000))
    assert min(counts.values()) > 850


def test_the_best_of_near_ones_are_chosen_alike_often() -> None:
    """Whoever comes first among them has no more of it."""
    chance = random.Random(5)
    offers = [(1.0, 0.01 * (at % 2), 0.0) for at in range(8)]
    counts = Counter(rank(offers, 0.5, 0.9, 0.05, chance)[0] for _ in range(4000))
    assert set(counts) == {0, 2, 4, 6}
    assert min(counts.values()) > 850


@pytest.mark.parametrize(("rho", "weight"), [(0.0, 0.5), (0.75, 0.25), (1.0, 0.05), (3.0, 0.05)])
def test_weight_of_the_queue_falls_with_utilisation(rho: float, weight: float) -> None:
    assert cost.queue_weight(rho, *BOUNDS) == weight
