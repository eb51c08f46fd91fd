"""The ranking, as a pure function."""

import random
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.scheduler import board, cost
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.sizes import SIZES, size_of

seconds = st.floats(0, 100)
offers = st.lists(st.tuples(seconds, seconds, st.floats(0, 2)), min_size=1, max_size=12)


def rank(given_offers: list[cost.Offer], weight: float, limit: float, tie: float, chance: random.Random) -> list[int]:
    """Of the core; the same as of a model in Python that draws the same lot."""
    packed = bytearray(24 * len(given_offers))
    for at, offer in enumerate(given_offers):
        cost.replace(packed, at, offer)
    model = random.Random()
    model.setstate(chance.getstate())
    order = cost.rank(packed, weight, limit, tie, chance)
    assert order == _ranked(given_offers, weight, limit, tie, model.random())
    return order


def _ranked(given_offers: list[cost.Offer], weight: float, limit: float, tie: float, draw: float) -> list[int]:
    costs = cost.costs(given_offers, weight, limit)
    order = sorted(range(len(costs)), key=costs.__getitem__)
    bound = cost.near_bound(costs[order[0]], tie)
    near = [at for place, at in enumerate(order) if place == 0 or costs[at] <= bound]
    chosen = int(draw * len(near))
    work, wait, _ = given_offers[near[chosen]]
    for position, at in enumerate(near):
        other_work, other_wait, _ = given_offers[at]
        if other_work <= work and other_wait <= wait and (other_work < work or other_wait < wait):
            chosen, work, wait = position, other_work, other_wait
    order.insert(0, order.pop(chosen))
    return order


_nodes = st.lists(st.integers(0, 9), unique=True, max_size=10)
_tokens = st.integers(0, 200_000)


@given(
    _nodes,
    st.lists(st.lists(st.floats(-10, 100), min_size=2 * SIZES, max_size=2 * SIZES), min_size=10, max_size=10),
    st.lists(st.tuples(st.integers(0, 12), _tokens, _tokens, _tokens), max_size=6, unique_by=lambda row: row[0]),
    st.lists(st.tuples(st.integers(0, 12), _tokens), max_size=6, unique_by=lambda row: row[0]),
    _tokens,
)
def test_offers_are_what_the_formulas_say(
    nodes: list[int],
    rows: list[list[float]],
    tiers: list[tuple[int, int, int, int]],
    claimed: list[tuple[int, int]],
    tokens: int,
) -> None:
    accounts, prices = bytearray(), Prices.of(1e-4, 1e-9)
    for node, row in enumerate(rows):
        board.writer(accounts, node)(node / 10, 0.0, *row)
    packed = [array("I", [number for row in of for number in row]).tobytes() for of in (tiers, claimed)]
    numbers = array("I", nodes).tobytes()
    offers = cost.unpacked(cost.weigh(accounts, numbers, *packed, tokens, prices))
    for node, (work, wait, load) in zip(nodes, offers, strict=True):
        held = max([0, *(sum(row[1:]) for row in (*tiers, *claimed) if row[0] == node)])
        uncached = max(1, tokens - held) if held else tokens
        size = size_of(uncached)
        assert work == pytest.approx(prices.seconds(uncached, max(0, tokens - uncached)))
        assert wait == pytest.approx(rows[node][size] + work * rows[node][SIZES + size])
        assert load == node / 10


def test_a_node_without_an_account_is_an_error() -> None:
    with pytest.raises(ValueError, match="row 3"):
        cost.weigh(b"", array("I", [3]).tobytes(), b"", b"", 10, Prices(1.0))


@given(offers, st.floats(0, 1), st.integers())
def test_ranking_is_a_permutation_and_its_first_is_beaten_by_none(
    given_offers: list[cost.Offer], rho: float, seed: int
) -> None:
    weight = cost.queue_weight(rho)
    order = rank(given_offers, weight, 0.9, 0.05, random.Random(seed))
    assert sorted(order) == list(range(len(given_offers)))
    work, wait, load = given_offers[order[0]]
    for other_work, other_wait, other_load in given_offers:
        if (other_load > 0.9) == (load > 0.9):
            assert not (other_work <= work and other_wait <= wait and (other_work < work or other_wait < wait))
    fulls = [given_offers[index][2] > 0.9 for index in order]
    assert fulls == sorted(fulls)


@given(offers, st.floats(0, 1), st.integers())
def test_costs_ascend_but_for_near_ties(given_offers: list[cost.Offer], rho: float, seed: int) -> None:
    weight = cost.queue_weight(rho)
    order = rank(given_offers, weight, 10.0, 0.05, random.Random(seed))
    costs = [given_offers[index][0] + weight * given_offers[index][1] for index in order]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= min(costs) * 1.05 + cost.NEGLIGIBLE_S + 1e-6


def test_equal_offers_are_chosen_alike_often() -> None:
    chance = random.Random(5)
    counts = Counter(rank([(1.0, 0.0, 0.0)] * 4, 1.0, 0.9, 0.05, chance)[0] for _ in range(4000))
    assert min(counts.values()) > 850


@pytest.mark.parametrize(("rho", "weight"), [(0.0, 0.5), (0.75, 0.25), (1.0, cost.MIN_WEIGHT), (3.0, cost.MIN_WEIGHT)])
def test_weight_of_the_queue_falls_with_utilisation(rho: float, weight: float) -> None:
    assert cost.queue_weight(rho) == weight
