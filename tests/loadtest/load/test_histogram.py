"""Quantiles of buckets against those of the sorted values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.loadtest.load.histogram import Histogram


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_right_within_a_bucket(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    found = histogram.quantile(share)
    assert found is not None
    assert exact / 1.021 <= found <= exact * 1.021


def test_summary() -> None:
    histogram = Histogram()
    assert histogram.summary() == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    for value in (1.0, 2.0, 6.0):
        histogram.add(value)
    summary = histogram.summary()
    assert summary["mean"] == pytest.approx(3.0)
    assert summary["max"] == 6.0
    assert summary["p50"] == pytest.approx(2.0, rel=0.02)
