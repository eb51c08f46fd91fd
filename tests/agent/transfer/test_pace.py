"""So many a second, with as many at once."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.transfer.pace import Pace


@given(st.floats(0.5, 1000.0), st.lists(st.floats(0.0, 0.5), max_size=200))
def test_no_more_pass_than_the_rate_and_a_second_s_worth(rate: float, pauses: list[float]) -> None:
    now = 100.0
    pace = Pace(rate, lambda: now)
    for passed, pause in enumerate(pauses):
        now += pause
        now += pace.wait()
        assert passed <= rate * (now - 100.0 + 1.0) + 1e-6


def test_who_comes_rarely_never_waits() -> None:
    now = 100.0
    pace = Pace(5.0, lambda: now)
    for _ in range(50):
        now += 0.25
        assert pace.wait() == 0.0
