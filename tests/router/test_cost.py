"""The ranking, as a pure function."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.scheduler import cost

seconds = st.floats(0, 100)
offers = st.lists(st.tuples(seconds, seconds, st.floats(0, 2)), min_size=1, max_size=12)


@given(offers, st.floats(0, 1), st.integers())
def test_ranking_is_a_permutation_and_its_first_is_beaten_by_none(
    given_offers: list[cost.Offer], rho: float, seed: int
) -> None:
    weight = cost.queue_weight(rho)
    order = cost.rank(given_offers, weight, 0.9, 0.05, random.Random(seed))
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
    order = cost.rank(given_offers, weight, 10.0, 0.05, random.Random(seed))
    costs = [given_offers[index][0] + weight * given_offers[index][1] for index in order]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= min(costs) * 1.05 + cost.NEGLIGIBLE_S + 1e-6


def test_equal_offers_are_chosen_alike_often() -> None:
    chance = random.Random(5)
    counts = Counter(cost.rank([(1.0, 0.0, 0.0)] * 4, 1.0, 0.9, 0.05, chance)[0] for _ in range(4000))
    assert min(counts.values()) > 850


@pytest.mark.parametrize(("rho", "weight"), [(0.0, 0.5), (0.75, 0.25), (1.0, cost.MIN_WEIGHT), (3.0, cost.MIN_WEIGHT)])
def test_weight_of_the_queue_falls_with_utilisation(rho: float, weight: float) -> None:
    assert cost.queue_weight(rho) == weight
