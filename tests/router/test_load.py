"""A node's account: placements count at once, reports add what others sent, and late ones do no harm."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.router.fleet import offer
from trunkline.router.scheduler.board import Board
from trunkline.router.scheduler.bus import Bus
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.prefill import Prices
from trunkline.router.scheduler.window import WINDOW_S, Recent
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import Finished, Load, TierLoad

RATE = 1000.0


def fresh(decode_s: float = 0.0, prices: Prices | None = None) -> NodeLoad:
    return NodeLoad(prices or Prices(RATE), 10, decode_s, 0.0, Board().row(0), Bus(1e5, 1e4), [])


def wait(load: NodeLoad, now: float) -> float:
    load.turn(now)
    return load.wait_s


def test_a_placement_counts_until_its_response_begins() -> None:
    load = fresh(decode_s=0.5)
    window = load.place(5000, 100, 0.0)
    assert wait(load, 0.0) == pytest.approx(5.5)
    load.begin(5000, 100, window)
    assert wait(load, 0.0) == pytest.approx(0.5)
    load.finish()
    load.settle()
    assert offer(load, 1, 2.0) == (2.0, 0.0, 0.0)


def test_what_others_sent_counts_on_top() -> None:
    load = fresh()
    window = load.place(3000, 0, 0.0)
    load.report(Load(backlog_tokens=5000, running=4, waiting=2, prefill_rate=RATE), 0.1)
    assert wait(load, 0.1) == pytest.approx(3.0 + 2.0)
    assert load.fill == pytest.approx(0.6)
    load.begin(3000, 0, window)
    load.finish()
    assert wait(load, 0.2) == pytest.approx(2.0)
    assert load.fill == pytest.approx(0.5)


def test_utilisation_is_priced_when_it_is_asked_for() -> None:
    prices = Prices(RATE / 30)
    load = fresh(prices=prices)
    window = load.place(1000, 0, 0.0)
    load.begin(1000, 0, window)
    load.finish()
    assert load.utilisation(0.0) == pytest.approx(3.0)
    load.report(Load(prefill_rate=RATE), 0.0)
    assert load.utilisation(0.0) == pytest.approx(0.1), "1 s in the last 10"
    assert 0.03 < load.utilisation(10.0) < 0.04


def test_kv_that_is_in_use_counts_as_utilisation() -> None:
    load = fresh()
    load.report(Load(tiers=(TierLoad(Tier.DEVICE, 1000, 50, 950, 0, 150),)), 0.0)
    assert load.utilisation(0.0) == pytest.approx(0.8), "what is only cached makes room"
    load.turn(WINDOW_S + 0.1)
    assert load.utilisation(WINDOW_S + 0.1) == 0.0, "a report that is too old is not believed"


def test_old_report_is_not_believed() -> None:
    load = fresh()
    load.report(Load(backlog_tokens=5000, running=4, prefill_rate=RATE), 0.0)
    assert wait(load, WINDOW_S - 0.1) == pytest.approx(5.0)
    assert wait(load, WINDOW_S + 0.1) == 0.0


def test_what_was_placed_long_ago_is_computed_once_a_report_says_so() -> None:
    """The response has not begun: the prompt is long, or the response comes in one piece."""
    load = fresh()
    window = load.place(5000, 0, 0.0)
    load.report(Load(backlog_tokens=1000, running=1, prefill_rate=RATE), WINDOW_S - 0.1)
    assert wait(load, WINDOW_S - 0.1) == pytest.approx(5.0)  # It may have been made before the request arrived.
    load.report(Load(backlog_tokens=1000, running=1, prefill_rate=RATE), 2 * WINDOW_S + 0.1)
    assert wait(load, 2 * WINDOW_S + 0.1) == pytest.approx(1.0)
    load.place(2000, 0, 2 * WINDOW_S + 0.2)
    assert wait(load, 2 * WINDOW_S + 0.2) == pytest.approx(3.0)
    load.begin(5000, 0, window)
    assert wait(load, 2 * WINDOW_S + 0.2) == pytest.approx(2.0)


def test_report_without_a_rate_says_nothing_about_seconds() -> None:
    load = fresh()
    load.report(Load(backlog_tokens=5000, running=4), 0.0)
    assert wait(load, 0.0) == 0.0
    assert load.fill == pytest.approx(0.4)


def test_reported_rate_is_the_first_assumption_and_learned_prices_replace_it() -> None:
    prices = Prices(RATE)
    load = fresh(prices=prices)
    load.report(Load(prefill_rate=4 * RATE), 0.0)
    assert prices.seconds(4000, 0) == pytest.approx(1.0)
    load.place(4000, 0, 0.0)
    for _ in range(200):
        load.learn(Finished("r", 1000, 0, 5, 0.0, 0.5))
    load.report(Load(prefill_rate=4 * RATE), 0.1)
    assert prices.seconds(1000, 0) == pytest.approx(0.5, rel=0.02)
    assert wait(load, 0.1) == pytest.approx(prices.seconds(4000, 0))


def test_a_slow_node_waits_longer_for_its_own_and_computes_longer() -> None:
    prices = Prices(RATE)
    slow, other = fresh(prices=prices), fresh(prices=prices)
    for _ in range(100):
        for _ in range(9):
            other.learn(Finished("r", 1000, 0, 5, 0.0, 1.0))
        slow.learn(Finished("r", 1000, 0, 5, 0.0, 3.0))
    slow.place(2000, 0, 0.0)
    slow.settle()
    own = prices.seconds(2000, 0)
    work, waited, _ = offer(slow, 1, 2.0)
    assert work == 2.0
    assert slow.pace.slowness * prices.seconds(1000, 0) == pytest.approx(3.0, rel=0.1)
    assert waited == pytest.approx(own * slow.pace.slowness + 2.0 * (slow.pace.slowness - 1.0))


@pytest.mark.parametrize(
    "finished",
    [
        Finished("all of it was cached", 1000, 1000, 5, 0.0, 9.0),
        Finished("more than there is was cached", 1000, 2000, 5, 0.0, 9.0),
        Finished("given up before its first token", 1000, 0, 0, 0.0, 0.001),
        Finished("took no time", 1000, 0, 5, 0.0, 0.0),
    ],
)
def test_nothing_is_learned_from_what_says_nothing(finished: Finished) -> None:
    prices = Prices(RATE)
    load = fresh(prices=prices)
    for _ in range(20):
        load.learn(finished)
    assert (prices.seconds(1000, 0), load.pace.slowness) == (1.0, 1.0)


Step = tuple[str, float, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["place", "compute", "begin", "finish", "tell"]), st.floats(0, 0.8), st.integers(1, 9999)
    ),
    max_size=80,
)


@dataclass
class Sent:
    """A request of ours, in the model."""

    tokens: int
    left: int
    window: int
    at: float


@given(steps, st.floats(0, WINDOW_S), st.floats(0, 1e6))
@example([("place", 0.0, 1000), ("tell", 0.1, 1), ("finish", 1.0, 1)], 1.0, 0.0)
@example([("tell", 0.2, 1), ("place", 0.1, 1000), *[("finish", 0.6875, 1)] * 3, ("place", 0.6875, 1)], 1.0, 1.0)
def test_a_node_alone_with_this_router_is_never_taken_for_busier_or_idler_than_it_can_be(
    given_steps: list[Step], delay: float, start: float
) -> None:
    """The node tells the truth, late. What was placed lately counts in full, what is older by no more than it was."""
    load, now = fresh(), start
    waiting: list[Sent] = []
    running = 0
    wire: deque[tuple[float, Load]] = deque()
    for kind, later, tokens in given_steps:
        now += later
        while wire and wire[0][0] + delay <= now:
            sent, report = wire.popleft()
            load.report(report, sent + delay)
        if kind == "place":
            waiting.append(Sent(tokens, tokens, load.place(tokens, 7, now), now))
        elif kind == "compute" and waiting:
            waiting[0].left = max(0, waiting[0].left - tokens)
        elif kind == "begin" and waiting:
            first = waiting.pop(0)
            load.begin(first.tokens, 7, first.window)
            running += 1
        elif kind == "finish" and running:
            load.finish()
            running -= 1
        elif kind == "tell":
            left = sum(one.left for one in waiting)
            wire.append((now, Load(running=running, waiting=len(waiting), backlog_tokens=left, prefill_rate=RATE)))
        seconds = wait(load, now)
        assert seconds <= sum(one.tokens for one in waiting) / RATE + 1e-6
        assert seconds >= sum(one.tokens for one in waiting if one.at > now - WINDOW_S) / RATE - 1e-6
        assert seconds >= sum(one.left for one in waiting) / RATE - 1e-6
        assert load.fill * 10 == pytest.approx(running + len(waiting))
    for one in waiting:
        load.begin(one.tokens, 7, one.window)
    for _ in range(running + len(waiting)):
        load.finish()
    load.settle()
    assert offer(load, 1, 1.0)[1:] == (0.0, 0.0)
    assert load.running == load.pending == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 100), st.booleans()), max_size=60))
def test_recent_looks_back_one_to_two_windows(given_steps: list[tuple[float, int, bool]]) -> None:
    recent, now = Recent(), 100.0
    waiting: list[tuple[float, int, int]] = []
    levels = [(now, 0)]
    for later, tokens, begins in given_steps:
        now += later
        if begins and waiting:
            _, old, window = waiting.pop()
            recent.begin(old, window)
            pending = sum(tokens for _, tokens, _ in waiting)
        else:
            pending = sum(tokens for _, tokens, _ in waiting) + tokens
            waiting.append((now, tokens, recent.place(tokens, pending, 2 * pending, now)))
        levels.append((now, pending))
        recent.turn(pending, 2 * pending, now)
        assert recent.placed() >= sum(tokens for at, tokens, _ in waiting if at > now - WINDOW_S)
        assert recent.placed() <= sum(tokens for at, tokens, _ in waiting if at >= now - 2 * WINDOW_S)
        for reported in (now, now - WINDOW_S / 2, now - WINDOW_S):
            if int(reported / WINDOW_S) >= int(now / WINDOW_S) - 1:
                unknown = sum(tokens for at, tokens, _ in waiting if at > reported - WINDOW_S)
                assert unknown <= recent.unknown_to(int(reported / WINDOW_S)) <= pending
        # A level lasts until the next one.
        ends = [at for at, _ in levels[1:]] + [now]
        lately = [level for (_, level), end in zip(levels, ends, strict=True) if end > now - WINDOW_S]
        assert max([pending, *lately]) <= recent.most_pending() <= max(level for _, level in levels)
        assert recent.most_running() == 2 * recent.most_pending()


def test_room_is_what_stayed_free() -> None:
    """Looked back on for one to two windows; later, what is free now counts."""
    load, free = fresh(), [1000, 0, 700, 900]
    for at, pages in enumerate(free):
        load.report(Load(tiers=(TierLoad(Tier.DEVICE, 1000, pages, 1000 - pages, 0, 0),)), 1.0 + at)
    assert load.room.value == 0
    for at in (12.0, 25.0):
        load.report(Load(tiers=(TierLoad(Tier.DEVICE, 1000, 900, 100, 0, 0),)), at)
    assert load.room.value == 900 * PAGE_TOKENS
