"""Which requests are placed with a pull, on nodes that report a link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.fleet import RATE, Fleet, text
from trunkline.router.scheduler.link import Link
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import Finished, Load, TierLoad

SIZE = 8000
TOKENS = SIZE / 4
"""Of such a text; two seconds of prefill."""


def _report(fleet: Fleet, node: int, *, link: float, free: int = 10_000, cached: int = 0) -> None:
    tiers = (TierLoad(Tier.DEVICE, 10_000, free, 10_000 - free, 0, cached),)
    fleet.scheduler.on_load(fleet.nodes[node], Load(prefill_rate=RATE, link_rate=link, tiers=tiers))


def _fleet(count: int = 2, *, link: float = 100_000.0, free: int = 10_000, cached: int = 0) -> Fleet:
    """Node 0 holds a prompt, and has ten seconds of others to compute."""
    fleet = Fleet(count)
    fleet.holds(0, text(1, SIZE))
    for node in range(count):
        _report(fleet, node, link=link, free=free, cached=cached)
    fleet.scheduler.load_of(fleet.nodes[0]).hold(10.0)
    return fleet


def test_a_node_with_nothing_to_do_pulls_from_one_that_is_busy() -> None:
    fleet = _fleet()
    placement = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes)
    choice = placement.choice(0)
    assert (choice.node, choice.pull_from) == (fleet.nodes[1], fleet.nodes[0])
    assert choice.matched == choice.pulled == sum(placement.ranking.known(0)[0][1:])
    assert choice.uncached == max(1, placement.tokens - choice.pulled)


def test_nobody_pulls_where_nodes_cannot() -> None:
    fleet = _fleet(link=0.0)
    placement = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes)
    assert [placement.choice(rank).pull_from for rank in (0, 1)] == [None, None]


def test_nobody_pulls_over_a_link_that_is_slower_than_computing() -> None:
    fleet = _fleet(link=RATE / 3)
    placement = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes)
    assert [placement.choice(rank).pull_from for rank in (0, 1)] == [None, None]


def test_a_holder_that_is_free_computes_itself() -> None:
    fleet = _fleet()
    fleet.scheduler.load_of(fleet.nodes[0]).hold(-10.0)
    choice = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes).choice(0)
    assert (choice.node, choice.pull_from) == (fleet.nodes[0], None)


def test_what_is_only_claimed_is_not_pulled() -> None:
    """It is being computed: there is nothing to lend yet."""
    fleet = Fleet(2)
    for node in range(2):
        _report(fleet, node, link=100_000.0)
    first = fleet.send(text(1, SIZE))
    first.choice.load.hold(10.0)
    placement = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes)
    assert [placement.choice(rank).pull_from for rank in (0, 1)] == [None, None]


def test_pulls_from_one_node_wait_for_each_other() -> None:
    fleet = _fleet(3, link=1.5 * RATE)
    first = fleet.send(text(1, SIZE))
    assert first.choice.pull_from is fleet.nodes[0]
    other = next(node for node in fleet.nodes[1:] if node is not first.choice.node)
    fleet.scheduler.forget(first.choice.node)  # What it claims is another matter.
    alone_s = first.choice.pulled / (1.5 * RATE)
    for pause, expected in ((0.0, 2 * alone_s), (alone_s, alone_s)):
        fleet.now += pause
        ranking = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes).ranking
        assert other.index in [at for at, _, _ in ranking.pulls(0)]
        assert ranking.offers()[other.index][1] == pytest.approx(expected, abs=0.05)


def test_a_copy_costs_what_it_pushes_out_of_a_full_cache() -> None:
    """All tokens so far were found in caches, so what is pushed out would have been, too: no better than computing."""
    waits = {}
    for free in (10_000, 0):
        fleet = _fleet(free=free, cached=10_000 - free)
        ticket = fleet.send(text(2, SIZE))
        request_id = next(iter(fleet.scheduler.accuracy._waiting))
        fleet.scheduler.on_finished(fleet.nodes[1], Finished(request_id, 2000, 2000, 1, 0.0, 0.0))
        fleet.answer(ticket)
        ranking = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes).ranking
        waits[free] = ranking.offers()[1][0] if ranking.pulls(0) else None
    assert waits[10_000] == pytest.approx(fleet.scheduler.prices.seconds(1, 2000), abs=0.1)
    assert waits[0] is None or waits[0] > 1.5


def test_nothing_is_pulled_to_where_it_would_not_last() -> None:
    fleet = _fleet(free=0, cached=int(TOKENS) // PAGE_TOKENS // 2)
    placement = fleet.scheduler.place(text(1, SIZE), "", fleet.nodes)
    assert [placement.choice(rank).pull_from for rank in (0, 1)] == [None, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9), st.integers(0, 5)), max_size=20))
def test_pulls_over_a_link_come_one_after_the_other(moves: list[tuple[int, int, int, int]]) -> None:
    """Against a model that keeps the end of the last pull for each node and direction."""
    links = [Link() for _ in range(4)]
    for link in links:
        link.report(2.0, 0, 0, 0.0)
    into, out = [0.0] * 4, [0.0] * 4
    now = 0.0
    for reader, holder, tokens, pause in moves:
        now += pause
        if reader == holder:
            continue
        end = max(now, into[reader], out[holder]) + tokens / 2.0
        links[reader].pull(links[holder], tokens, now)
        into[reader] = out[holder] = end
        assert links[reader].in_free_at == links[holder].out_free_at == pytest.approx(end)
