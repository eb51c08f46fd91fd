import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.loadtest.sim.links import Flow, Links

CAPACITIES = (100.0, 100.0, 40.0, 40.0)
_flows = st.lists(
    st.tuples(
        st.floats(0.0, 20.0),
        st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
        st.floats(0.0, 500.0),
    ),
    min_size=1,
    max_size=8,
)


def test_one_flow_goes_at_the_slower_of_its_links() -> None:
    links = Links(CAPACITIES)
    assert links.seconds((0, 2), 80.0) == 2.0
    assert _run(links, [(1.0, Flow((0, 2), 80.0, 0.5))]) == pytest.approx([2.5])
    assert links.due == math.inf


def test_flows_share_a_link_and_leave_each_other_alone_elsewhere() -> None:
    first, second, third = Flow((0, 2), 80.0, 0.0), Flow((0, 3), 80.0, 0.0), Flow((1,), 100.0, 0.0)
    assert _run(Links(CAPACITIES), [(0.0, first), (0.0, second), (0.0, third)]) == pytest.approx([2.0, 2.0, 1.0])
    first, second = Flow((2,), 40.0, 0.0), Flow((2,), 40.0, 0.0)
    # Alone for half a second, then shared until the first one ends, then alone again.
    assert _run(Links(CAPACITIES), [(0.0, first), (0.5, second)]) == pytest.approx([1.5, 2.0])


def test_a_flow_that_is_given_up_leaves_its_share_to_others() -> None:
    links = Links(CAPACITIES)
    first, second = Flow((2,), 40.0, 0.0), Flow((2,), 40.0, 0.0)
    links.start(first, 0.0)
    links.start(second, 0.0)
    links.cancel(first, 1.0)
    assert (first.left, links.due) == (20.0, 1.5)
    assert links.advance(1.5) == [second]


@given(_flows)
def test_ends_are_those_of_many_small_steps(wanted: list[tuple[float, list[int], float]]) -> None:
    flows = [(at, Flow(links, size, 0.0)) for at, links, size in sorted(wanted)]
    sizes = [flow.left for _, flow in flows]
    exact = _run(Links(CAPACITIES), flows)
    for found, model in zip(exact, _small_steps(flows, sizes), strict=True):
        assert found == pytest.approx(model, abs=0.25)


def _run(links: Links, flows: list[tuple[float, Flow]]) -> list[float]:
    """When each flow became ready."""
    ready: dict[Flow, float] = {}
    for at, flow in [*flows, (math.inf, None)]:
        while links.due < at:
            now = links.due
            for one in links.advance(now):
                ready[one] = now
        if flow is not None:
            links.start(flow, at)
    assert [links.left(link, 1e6) for link in range(len(CAPACITIES))] == [0.0] * len(CAPACITIES)
    return [ready[flow] for _, flow in flows]


def _small_steps(flows: list[tuple[float, Flow]], sizes: list[float]) -> list[float]:
    step, now = 0.01, 0.0
    left = list(sizes)
    ends: dict[int, float] = {}
    while len(ends) < len(flows):
        going = [n for n, (at, _) in enumerate(flows) if at <= now and n not in ends]
        for n in going:
            links = flows[n][1].links
            users = {link: sum(link in flows[m][1].links for m in going) for link in links}
            left[n] -= step * min(CAPACITIES[link] / users[link] for link in links)
        now += step
        ends |= {n: now for n in going if left[n] <= 0}
    return [ends[n] for n in range(len(flows))]
