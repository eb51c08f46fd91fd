"""What is learned about prefill: prices that fit, steadiness against noise, and which node is slow."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.scheduler.prefill import NODE_MEMORY_S, NOTABLE, Pace, Prices, pairs

TOKEN_S, PAIR_S = 3e-5, 1e-9


def real(tokens: int, matched: int) -> float:
    return TOKEN_S * tokens + PAIR_S * pairs(tokens, matched)


def prompts(count: int, seed: int = 1) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    return [(int(chance.lognormvariate(8, 1.5)) + 1, chance.choice((0, 0, 500, 20_000))) for _ in range(count)]


def fleet(size: int, rate: float = 8000.0) -> tuple[Prices, list[Pace]]:
    prices = Prices(rate)
    return prices, [Pace(prices) for _ in range(size)]


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_pairs_are_those_of_causal_attention(tokens: int, matched: int) -> None:
    assert pairs(tokens, matched) == sum(range(matched + 1, matched + tokens + 1))
    assert Prices(100.0).seconds(tokens, matched) == pytest.approx(tokens / 100.0)


@pytest.mark.parametrize("rate", [8000.0, 1e6, 800.0])
def test_both_prices_are_learned_wherever_they_start(rate: float) -> None:
    prices, (pace, *_) = fleet(1, rate)
    for tokens, matched in prompts(3000):
        pace.learn(tokens, matched, real(tokens, matched))
    for tokens, matched in ((500, 0), (8000, 0), (500, 20_000), (60_000, 0)):
        expected = prices.seconds(tokens, matched) * pace.slowness
        assert expected == pytest.approx(real(tokens, matched), rel=0.1)


def test_the_best_that_nodes_say_counts_until_more_is_learned() -> None:
    prices, (pace, *_) = fleet(1)
    for rate, expected in ((300.0, 300.0), (10_000.0, 10_000.0), (500.0, 10_000.0), (0.0, 10_000.0)):
        prices.told(rate)
        assert prices.seconds(1000, 0) == pytest.approx(1000 / expected)
    for _ in range(10):
        pace.learn(1000, 0, 0.1)
    prices.told(1e6)
    assert prices.seconds(1000, 0) == pytest.approx(0.1)


def test_prompts_that_are_all_alike_say_nothing_about_pairs() -> None:
    prices, (pace, *_) = fleet(1)
    for _ in range(300):
        pace.learn(1000, 0, real(1000, 0))
    assert prices.seconds(1000, 0) == pytest.approx(real(1000, 0), rel=0.02)
    assert prices.seconds(4000, 0) == pytest.approx(real(4000, 0), rel=0.3)


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
@pytest.mark.parametrize("prompt", [(1, 0), (1000, 0), (100_000, 0), (10, 1_000_000)])
def test_one_report_moves_the_model_little(seconds: float, prompt: tuple[int, int]) -> None:
    prices, paces = fleet(2)
    for number, (tokens, matched) in enumerate(prompts(3000)):
        paces[number % 2].learn(tokens, matched, real(tokens, matched))
    known = ((500, 0), (8000, 0), (500, 20_000))
    before = [prices.seconds(*one) * paces[0].slowness for one in known]
    paces[0].learn(*prompt, seconds)
    after = [prices.seconds(*one) * paces[0].slowness for one in known]
    assert after == pytest.approx(before, rel=0.12)


def test_few_outliers_do_not_matter() -> None:
    prices, (pace, *_) = fleet(1)
    chance = random.Random(4)
    for tokens, matched in prompts(3000):
        pace.learn(tokens, matched, real(tokens, matched) * (1000.0 if chance.random() < 0.03 else 1.0))
    assert prices.seconds(8000, 0) == pytest.approx(real(8000, 0), rel=0.1)


def test_equal_nodes_stay_equal_under_noise() -> None:
    _, paces = fleet(8)
    chance = random.Random(2)
    for tokens, matched in prompts(4000):
        chance.choice(paces).learn(tokens, matched, real(tokens, matched) * chance.uniform(0.8, 1.8))
    assert [pace.slowness for pace in paces] == [1.0] * 8


@pytest.mark.parametrize("factor", [0.4, 2.0, 3.0])
@pytest.mark.parametrize(("known", "memories"), [(0, 1), (2000, 8)])
def test_a_node_of_another_speed_is_found_out(factor: float, known: int, memories: int) -> None:
    """Sooner when it was of that speed from the start than when it changes."""
    prices, paces = fleet(8)
    for number, (tokens, matched) in enumerate(prompts(known)):
        paces[number % 8].learn(tokens, matched, real(tokens, matched))
    computed = 0.0
    for number, (tokens, matched) in enumerate(prompts(2000, seed=2)):
        node = number % 8
        seconds = real(tokens, matched) * (factor if node == 7 else 1.0)
        paces[node].learn(tokens, matched, seconds)
        computed += seconds if node == 7 else 0.0
        if computed > memories * NODE_MEMORY_S:
            break
    assert prices.seconds(8000, 0) * paces[7].slowness == pytest.approx(factor * real(8000, 0), rel=0.2)
    assert [pace.slowness for pace in paces[:7]] == [1.0] * 7


reports = st.tuples(
    st.integers(0, 2), st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.floats(0, 1e15, exclude_min=True)
)


@given(st.lists(reports, max_size=60), st.floats(1e-3, 1e15))
def test_whatever_is_reported_prices_are_positive_and_nodes_comparable(
    given_reports: list[tuple[int, int, int, float]], rate: float
) -> None:
    prices, paces = fleet(3, rate)
    for node, tokens, matched, seconds in given_reports:
        paces[node].learn(tokens, matched, seconds)
        assert 0.0 < prices.seconds(1, 0) < float("inf")
        assert 0.0 < prices.seconds(10_000, 1000) < float("inf")
        assert 1e-6 < paces[node].slowness < 1e6
        assert paces[node].slowness == 1.0 or not 1.0 / NOTABLE < paces[node].slowness < NOTABLE
