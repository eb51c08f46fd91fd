"""A node's account: placements count at once, reports add what others sent, and late ones do no harm."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.scheduler.load import WINDOW_S, NodeLoad
from trunkline.router.scheduler.prefill import Prices
from trunkline.shared.wire import Finished, Load

RATE = 1000.0


def fresh(decode_s: float = 0.0, prices: Prices | None = None) -> NodeLoad:
    return NodeLoad(prices or Prices(RATE), 10, decode_s, 0.0)


def wait(load: NodeLoad, now: float) -> float:
    return load.offer(0.0, now)[1]


def test_a_placement_counts_until_its_response_begins() -> None:
    load = fresh(decode_s=0.5)
    load.place(5000, 100, 0.0)
    assert wait(load, 0.0) == pytest.approx(5.5)
    load.begin(5000, 100)
    assert wait(load, 0.0) == pytest.approx(0.5)
    load.finish()
    assert load.offer(2.0, 0.0) == (2.0, 0.0, 0.0)


def test_what_others_sent_counts_on_top() -> None:
    load = fresh()
    load.place(3000, 0, 0.0)
    load.report(Load(backlog_tokens=5000, running=4, waiting=2, prefill_rate=RATE), 0.1)
    assert wait(load, 0.1) == pytest.approx(3.0 + 2.0)
    assert load.share() == pytest.approx(0.6)
    load.begin(3000, 0)
    load.finish()
    assert wait(load, 0.2) == pytest.approx(2.0)
    assert load.share() == pytest.approx(0.5)


def test_old_report_is_not_believed() -> None:
    load = fresh()
    load.report(Load(backlog_tokens=5000, running=4, prefill_rate=RATE), 0.0)
    assert wait(load, WINDOW_S - 0.1) == pytest.approx(5.0)
    assert wait(load, WINDOW_S + 0.1) == 0.0


def test_report_without_a_rate_says_nothing_about_seconds() -> None:
    load = fresh()
    load.report(Load(backlog_tokens=5000, running=4), 0.0)
    assert wait(load, 0.0) == 0.0
    assert load.share() == pytest.approx(0.4)


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
    own = prices.seconds(2000, 0)
    work, waited, _ = slow.offer(2.0, 0.0)
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
    st.tuples(st.sampled_from(["place", "begin", "finish", "tell"]), st.floats(0, 0.4), st.integers(1, 100_000)),
    max_size=80,
)


@given(steps, st.floats(0, WINDOW_S), st.integers())
def test_own_requests_are_never_taken_for_others_however_late_reports_are(
    given_steps: list[Step], delay: float, seed: int
) -> None:
    """A node that is alone with this router reports the truth about it, late; computing goes on in between."""
    chance = random.Random(seed)
    load, now = fresh(), 0.0
    waiting: list[int] = []
    running = 0
    wire: deque[tuple[float, Load]] = deque()
    for kind, later, tokens in given_steps:
        now += later
        while wire and wire[0][0] + delay <= now:
            sent, report = wire.popleft()
            load.report(report, sent + delay)
        if kind == "place":
            load.place(tokens, 7, now)
            waiting.append(tokens)
        elif kind == "begin" and waiting:
            load.begin(waiting.pop(0), 7)
            running += 1
        elif kind == "finish" and running:
            load.finish()
            running -= 1
        elif kind == "tell":
            left = sum(waiting) - (chance.randrange(waiting[0]) if waiting else 0)
            wire.append((now, Load(running=running, waiting=len(waiting), backlog_tokens=left, prefill_rate=RATE)))
        assert wait(load, now) == pytest.approx(sum(waiting) / RATE)
        assert load.share() * 10 == pytest.approx(running + len(waiting))
    for tokens in waiting:
        load.begin(tokens, 7)
    for _ in range(running + len(waiting)):
        load.finish()
    assert load.offer(1.0, now)[1:] == (0.0, 0.0)
    assert load.running == load.pending == 0
