"""How fast lower tiers are, learned from what a node measured."""

import pytest

from tests.router.fleet import Fleet, text
from trunkline.router.scheduler.bus import Bus
from trunkline.shared.names import Tier
from trunkline.shared.wire import Load


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


@pytest.mark.parametrize(
    ("tier", "rate", "found"), [(Tier.HOST, 10.0, False), (Tier.DISK, 10.0, False), (Tier.DISK, 1e5, True)]
)
def test_what_is_slower_to_bring_than_to_compute_counts_for_nothing(tier: Tier, rate: float, found: bool) -> None:
    """Two seconds of prefill, which a node has on disk or in its host tier."""
    fleet = Fleet(2)
    fleet.holds(0, text(1, 8000), tier)
    for _ in range(40):
        fleet.scheduler.on_load(fleet.nodes[0], Load(promote_rate=rate, disk_rate=rate))
    choices = [fleet.scheduler.place(text(1, 8000), "", fleet.nodes).choice(rank) for rank in (0, 1)]
    own = next(choice for choice in choices if choice.node is fleet.nodes[0])
    assert (own.matched > 1900) is found
    assert found is False or choices[0] is own


def test_bringing_a_prefix_overlaps_with_the_wait_for_ones_turn() -> None:
    """Both nodes have half a second of others; one has the prompt on disk, and needs a tenth of one to bring it."""
    fleet = Fleet(2)
    fleet.holds(0, text(1, 8000), Tier.DISK)
    for node in fleet.nodes:
        fleet.scheduler.load_of(node).hold(0.5)
    placement = fleet.scheduler.place(text(1, 8000), "", fleet.nodes)
    work, wait, *_ = placement.ranking.offers()[0]
    assert placement.choice(0).node is fleet.nodes[0]
    choice = placement.choice(0)
    assert work == fleet.scheduler.prices.seconds(choice.uncached, choice.matched)
    assert wait == pytest.approx(0.5)
