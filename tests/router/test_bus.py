"""How fast lower tiers are, learned from what a node measured."""

import pytest

from trunkline.router.scheduler.bus import Bus


def test_what_a_node_measures_is_learned_within_seconds() -> None:
    bus = Bus(100_000.0, 10_000.0)
    for _ in range(30):
        bus.report(1_000_000.0, 1_000.0)
    assert bus.host_s == pytest.approx(1e-6, rel=0.05)
    assert bus.disk_s == pytest.approx(1e-3 + 1e-6, rel=0.05)


def test_a_node_that_measured_nothing_keeps_what_was_assumed() -> None:
    bus = Bus(100_000.0, 10_000.0)
    bus.report(0.0, 0.0)
    assert (bus.host_s, bus.disk_s) == (1e-5, 1e-4)


@pytest.mark.parametrize("rate", [1e-3, 1e12])
def test_one_wild_report_moves_it_by_a_quarter_at_most(rate: float) -> None:
    bus = Bus(100_000.0, 10_000.0)
    bus.report(rate, rate)
    assert 0.75e-5 <= bus.host_s <= 1.25e-5
    assert 0.75e-4 <= bus.disk_s <= 1.25e-4
