"""The share of a computing engine's time that moves may take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.pace import MOST_OWED_S, SHARE, Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_was_taken_is_given_back_before_more_is_sent() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.turn(computing=True)
    assert pace.open
    pace.spend(0.01)
    assert pace.open, "what a turn takes itself closes the next one"
    for now, opens in ((0.01 / SHARE * 0.9, False), (0.01 / SHARE * 1.1, True)):
        clock.now = now
        pace.turn(computing=True)
        assert pace.open is opens


def test_it_is_known_for_how_long_pages_were_held_back() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.spend(0.5 * SHARE)
    pace.turn(computing=True)
    for clock.now, asked in ((0.1, False), (0.2, True), (0.3, True), (0.6, False), (0.7, True)):
        pace.turn(computing=True)
        assert not asked or pace.may_send() == pace.open
        assert pace.holds == (asked and not pace.open)
    assert pace.open, "half a second has given it back"
    assert pace.held_s == pytest.approx(0.4), "from 0.2, when it was first asked for, to 0.6"


def test_an_idle_engine_lacks_nothing() -> None:
    pace = Pace(Clock())
    pace.spend(MOST_OWED_S)
    pace.turn(computing=True)
    assert not pace.open
    pace.turn(computing=False)
    assert pace.open


def test_nobody_is_held_back_for_longer_than_the_bound() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.spend(1000.0)
    clock.now = MOST_OWED_S / SHARE + 1e-6
    pace.turn(computing=True)
    assert pace.open


@given(costs=st.lists(st.floats(0.0, 0.04), min_size=50, max_size=200), step_s=st.floats(0.01, 0.3))
def test_in_the_long_run_no_more_than_the_share_is_taken(costs: list[float], step_s: float) -> None:
    clock = Clock()
    pace = Pace(clock)
    taken = 0.0
    for cost_s in costs:
        clock.now += step_s
        pace.turn(computing=True)
        if pace.open:
            pace.spend(cost_s)
            taken += cost_s
    assert taken <= SHARE * clock.now + max(costs) + 1e-9


def test_the_time_of_the_callers_thread_counts() -> None:
    clock = Clock()
    pace = Pace(clock)
    with pace.spending():
        sum(range(10_000))
    pace.turn(computing=True)
    assert not pace.open
