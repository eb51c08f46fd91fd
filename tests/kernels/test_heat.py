"""Rates of return and the order of eviction, beside a Python model of them."""

import math
from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import Heat

FIRST = 1 << 32
AGES, KINDS, LEVELS, PRIOR, DECAY, VISITS, TIERS = (0, 3, 7, 20), 2, 6, 2.0, 0.1, 40, 2


class Model:
    """All visits, all pages, everything computed anew where it can be."""

    def __init__(self) -> None:
        self.now = FIRST
        self.visits: dict[int, dict[str, object]] = {}
        self.seen, self.expected = [0.0] * LEVELS, [0.0] * LEVELS
        self.returns, self.exposure = [0.0] * len(AGES) * KINDS, [0.0] * len(AGES) * KINDS
        self.rates = [1 / (8 + age) for age in AGES] * KINDS
        self.values = list(self.rates)
        self.offers: dict[int, dict[int, int]] = {tier: {} for tier in range(TIERS)}
        self.weights: dict[tuple[int, int], float] = {}

    def factor(self, level: int) -> float:
        return (self.seen[level] + PRIOR) / (self.expected[level] + PRIOR)

    def weight(self, levels: list[int]) -> float:
        return math.prod(map(self.factor, levels))

    def visit(self, levels: list[int], kind: int) -> int:
        number = self.now
        self.visits[number] = {
            "levels": levels,
            "open": bool(levels),
            "kind": kind,
            "age": 0,
            "weight": self.weight(levels),
        }
        self.now += 1
        for age, (begin, end) in enumerate(pairwise(AGES)):
            for older in sorted(self.visits):
                visit = self.visits[older]
                if visit["age"] == age and older + end <= self.now:
                    if visit["open"]:
                        self.observe(visit, end - begin, 0)
                    visit["age"], visit["weight"] = age + 1, self.weight(visit["levels"])  # type: ignore[arg-type]
        if number % 64 == 0:
            self.refresh()
        self.visits.pop(self.now - 1 - VISITS, None)
        return number

    def returned(self, number: int) -> None:
        visit = self.visits.get(number)
        if visit is not None and visit["open"]:
            self.observe(visit, max(1, self.now - number - AGES[visit["age"]]), 1)  # type: ignore[index]
            visit["open"] = False

    def observe(self, visit: dict[str, object], waited: int, returns: int) -> None:
        age: int = visit["age"] + len(AGES) * visit["kind"]  # type: ignore[assignment, operator]
        levels: list[int] = visit["levels"]  # type: ignore[assignment]
        chance = waited * self.rates[age] * self.weight(levels)
        factors = [self.factor(level) for level in levels]
        self.returns[age] += returns
        self.exposure[age] += waited
        for level, factor in zip(levels, factors, strict=True):
            self.seen[level] += returns
            self.expected[level] += chance / factor

    def refresh(self) -> None:
        likely, size = 1.0, len(AGES)
        for age, begin in enumerate(AGES):
            everyone = (sum(self.returns[age::size]) + likely) / (sum(self.exposure[age::size]) + begin + 8)
            likely = everyone * (begin + 8)
            for at in range(age, size * KINDS, size):
                self.rates[at] = (self.returns[at] + PRIOR) / (self.exposure[at] + PRIOR / everyone)
        for kind in range(KINDS):
            rates = self.rates[kind * size : (kind + 1) * size]
            self.values[kind * size : (kind + 1) * size] = [best_ratio(rates, first) for first in range(size)]
        for counts in (self.seen, self.expected, self.returns, self.exposure):
            counts[:] = [count * (1 - DECAY) for count in counts]

    def worth(self, tier: int, page: int) -> float:
        number = self.offers[tier][page]
        visit = self.visits.get(number, {"weight": 1.0, "kind": 0})
        first: int = visit["kind"] * len(AGES)  # type: ignore[operator]
        weight: float = visit["weight"]  # type: ignore[assignment]
        return weight * self.values[first + bisect_right(AGES, self.now - number) - 1]


def best_ratio(rates: list[float], first: int) -> float:
    ratios, left, chance, wait = [], 1.0, 0.0, 0.0
    for age in range(first, len(AGES)):
        width = AGES[age + 1] - AGES[age] if age + 1 < len(AGES) else AGES[age]
        stays = math.exp(-rates[age] * width)
        chance += left * (1 - stays)
        wait += left * (1 - stays) / rates[age]
        left *= stays
        ratios.append(chance / wait)
    return max(ratios)


LEVEL_LISTS = st.lists(st.integers(0, LEVELS - 1), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("visit"), LEVEL_LISTS, st.integers(0, KINDS - 1), st.integers(1, 30)),
        st.tuples(st.just("returned"), st.integers(0, 60)),
        st.tuples(st.just("offer"), st.integers(0, TIERS - 1), st.integers(0, 9), st.integers(0, 60)),
        st.tuples(st.just("take"), st.integers(0, TIERS - 1)),
        st.tuples(st.just("take_oldest"), st.integers(0, TIERS - 1)),
        st.tuples(st.just("clear"), st.integers(0, TIERS - 1)),
    ),
    max_size=40,
)


@given(STEPS)
def test_heat_is_like_its_model(steps: list[tuple[object, ...]]) -> None:
    heat, model = Heat(AGES, KINDS, LEVELS, PRIOR, DECAY, VISITS, TIERS), Model()
    for step in steps:
        match step:
            case ("visit", list(levels), int(kind), int(times)):
                for _ in range(times):
                    assert heat.visit(levels, kind) == model.visit(levels, kind)
            case ("returned", int(ago)):
                heat.returned(max(0, model.now - 1 - ago))
                model.returned(max(0, model.now - 1 - ago))
            case ("offer", int(tier), int(page), int(ago)):
                heat.offer(tier, page, max(0, model.now - 1 - ago))
                model.offers[tier][page] = max(0, model.now - 1 - ago)
            case ("take", int(tier)):
                page = heat.take(tier)
                worth = {page: model.worth(tier, page) for page in model.offers[tier]}
                assert (page is None) == (not worth)
                if page is not None:
                    # Weights are held in 32 bits.
                    assert worth[page] <= min(worth.values()) * (1 + 1e-6)
                    del model.offers[tier][page]
            case ("take_oldest", int(tier)):
                page = heat.take_oldest(tier)
                offers = model.offers[tier]
                assert page == min(offers, key=lambda page: (offers[page], page), default=None)
                if page is not None:
                    del offers[page]
            case ("clear", int(tier)):
                heat.clear(tier)
                model.offers[tier].clear()
        rates, values = heat.rates()
        assert rates == pytest.approx(model.rates)
        assert values == pytest.approx(model.values)
        assert heat.factors() == pytest.approx([model.factor(level) for level in range(LEVELS)])
        for tier in range(TIERS):
            assert [heat.offered(tier, page) for page in range(10)] == [model.offers[tier].get(p) for p in range(10)]


def test_what_nobody_knows_anything_of_goes_least_recently_used_first() -> None:
    heat = Heat(AGES, KINDS, LEVELS, PRIOR, DECAY, VISITS, TIERS)
    for page in range(200):
        heat.offer(0, page, heat.visit([]))
    assert [heat.take(0) for _ in range(201)] == [*range(200), None]


def test_visits_that_return_keep_their_pages() -> None:
    heat = Heat(AGES, KINDS, LEVELS, PRIOR, DECAY, VISITS, TIERS)
    for _ in range(300):
        loyal = heat.visit([0])
        heat.visit([1])
        heat.returned(loyal)
    assert heat.factors()[0] > 2 * heat.factors()[1]
    heat.offer(0, 0, heat.visit([0]))
    heat.offer(0, 1, heat.visit([1]))
    assert heat.take(0) == 1


def test_arguments_out_of_range_are_refused() -> None:
    heat = Heat(AGES, KINDS, LEVELS, PRIOR, DECAY, VISITS, TIERS)
    with pytest.raises(ValueError, match="has not begun"):
        heat.returned(FIRST)
    with pytest.raises(ValueError, match="has not begun"):
        heat.offer(0, 0, FIRST)
    with pytest.raises(ValueError, match="levels"):
        heat.visit([LEVELS])
    with pytest.raises(ValueError, match="levels"):
        heat.visit([0] * 7)
    with pytest.raises(ValueError, match="kind 2"):
        heat.visit([], KINDS)
    with pytest.raises(ValueError, match="tier 2"):
        heat.take(TIERS)
    for ages in ([0], [1, 2], [0, 2, 2]):
        with pytest.raises(ValueError, match="ages"):
            Heat(ages, 1, 1, 1.0, 0.0, 1, 1)
    with pytest.raises(ValueError, match="prior"):
        Heat(AGES, 1, 1, 0.0, 0.0, 1, 1)
