"""The last hour, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.counters import Counters, Outcome
from trunkline.router.scheduler.accuracy import Accuracy
from trunkline.router.ui.history import QUANTILES, STEP_S, STEPS, History, Step, quantile
from trunkline.shared.metrics.router import TTFT


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_step_has_what_happened_in_it_and_nothing_before() -> None:
    counters, accuracy, clock = Counters(), Accuracy(4.0), Clock()
    counters.began(9.0, 0, 77, stream=True)  # Before the history begins.
    history = History(counters, accuracy, clock, lambda: 1000.0 + clock.now)
    clock.now += STEP_S
    history.expire()
    assert history.steps.pop() == Step(1060.0, 0, 0, None, 0, 0, 0, 0)
    for matched in (0, 60, 90):
        counters.began(0.04, matched, 100, stream=True)
    counters.began(7.0, 0, 100, stream=False)
    for outcome in Outcome:
        counters.outcomes[outcome] += 1
    accuracy.prompt_tokens += 200
    accuracy.real_tokens += 140
    clock.now += STEP_S
    history.expire()
    step = history.steps.pop()
    assert (step.requests, step.failed, step.placed, step.expected) == (6, 3, 400, 150)
    assert (step.checked, step.cached) == (200, 140)
    assert step.ttft_s is not None
    assert all(0.03 <= seconds <= 0.05 for seconds in step.ttft_s)
    clock.now += STEP_S
    history.expire()
    assert history.steps.pop() == Step(1080.0, 0, 0, None, 0, 0, 0, 0)
    assert history.deadline == clock.now + STEP_S


def test_an_hour_is_kept() -> None:
    history = History(Counters(), Accuracy(4.0), Clock(), iter(range(10_000)).__next__)
    for _ in range(STEPS + 5):
        history.expire()
    assert [step.at for step in history.steps] == list(range(5, STEPS + 5))


@given(st.lists(st.floats(0.0, 500.0), min_size=1), st.sampled_from(QUANTILES))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    counters = Counters()
    for value in values:
        counters.ttft.add(value)
    found = quantile(counters.ttft.counts(), TTFT.bounds, share)
    true = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    bounds = (0.0, *TTFT.bounds)
    below = max(bound for bound in bounds if bound < true or bound == 0.0)
    above = next((bound for bound in TTFT.bounds if bound >= true), TTFT.bounds[-1])
    assert min(below, bounds[-1]) <= found <= above


def test_quantiles_take_a_bucket_as_even() -> None:
    assert quantile([0, 4, 0], [1.0, 2.0], 0.5) == pytest.approx(1.5)
    assert quantile([1, 1, 0], [1.0, 2.0], 0.5) == 1.0
    assert quantile([0, 0, 3], [1.0, 2.0], 0.5) == 2.0
