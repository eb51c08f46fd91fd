"""The token bucket, against a model that adds up what it was given."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.admission.bucket import TokenBucket

RATE, BURST = 100.0, 1000.0


def test_a_burst_and_then_the_rate() -> None:
    bucket = TokenBucket(RATE, BURST, now=0.0)
    assert bucket.take(BURST, 0.0) == 0.0
    assert bucket.take(50.0, 0.0) == 0.5
    assert bucket.take(50.0, 0.4) > 0.0
    assert bucket.take(50.0, 0.5) == 0.0


def test_more_than_a_burst_is_owed_afterwards() -> None:
    bucket = TokenBucket(RATE, BURST, now=0.0)
    assert bucket.take(3 * BURST, 0.0) == 0.0
    assert bucket.take(1.0, 0.0) == (2 * BURST + 1.0) / RATE


def test_corrections_count_at_once() -> None:
    bucket = TokenBucket(RATE, BURST, now=0.0)
    assert bucket.take(BURST, 0.0) == 0.0
    bucket.give(400.0)
    assert bucket.take(400.0, 0.0) == 0.0
    bucket.give(-200.0)
    assert bucket.take(100.0, 0.0) == 3.0


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(1.0, 1500.0))))
def test_never_more_than_rate_and_burst_allow(asks: list[tuple[float, float]]) -> None:
    bucket, now, taken, largest = TokenBucket(RATE, BURST, now=0.0), 0.0, 0.0, 0.0
    for pause, tokens in asks:
        now += pause
        wait = bucket.take(tokens, now)
        if wait == 0.0:
            taken += tokens
            largest = max(largest, tokens - BURST)
            assert taken <= BURST + now * RATE + largest + 1e-6
        else:
            # Not a moment earlier than it says, and then indeed.
            now += wait * 0.99
            assert bucket.take(tokens, now) > 0.0
            now += wait * 0.01 + 1e-9
            assert bucket.take(tokens, now) == 0.0
            taken += tokens
            largest = max(largest, tokens - BURST)
