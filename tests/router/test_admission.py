"""Who goes on, who waits and who is turned away; without a network."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.router.admitting import Asked, Gate, tenant
from tests.router.fleet import RATE, text
from trunkline.router.admission.flow import Refusal
from trunkline.router.node import NodeState
from trunkline.shared.errors import Overloaded

# A prompt of `text` has 1,000 tokens: a second of prefill on a node of the fleet.
A, B = tenant("a"), tenant("b")


def test_without_tenants_nobody_waits_until_a_batch_is_full() -> None:
    gate = Gate()
    assert all(gate.ask().sent for _ in range(100))
    gate.report(max_running=100)
    waiting = gate.ask()
    assert waiting.held
    assert gate.admission.held == 1


def test_room_is_given_on_in_order_of_priority_and_arrival() -> None:
    gate = Gate()
    gate.report(max_running=1)
    first = gate.ask()
    later, urgent, last = gate.ask(priority=0), gate.ask(priority=-1), gate.ask(priority=0)
    for done, following in ((first, urgent), (urgent, later), (later, last)):
        assert not following.sent
        done.end()
        assert following.sent
    last.end()
    assert gate.idle()


def test_a_node_that_has_room_is_preferred_to_a_better_one_that_has_none() -> None:
    gate = Gate(nodes=2)
    prompt = text(1)
    gate.fleet.holds(0, prompt)
    for node in (0, 1):
        gate.report(node, max_running=1)
    first, second, third = (gate.ask(prompt=prompt) for _ in range(3))
    assert first.sent
    assert first.choice.node.index == 0
    assert second.sent
    assert second.choice.node.index == 1
    assert third.held


def test_who_is_behind_need_not_wait_here_and_who_is_ahead_waits_for_it() -> None:
    gate = Gate([A, B], depth_s=1.5)
    a = [gate.ask("a") for _ in range(4)]
    assert [one.sent for one in a] == [True, True, False, False]
    b = gate.ask("b")
    assert b.sent
    a[0].begin()
    assert not a[2].sent
    b.begin()
    assert a[2].sent
    assert not a[3].sent


def test_a_flood_waits_behind_who_asks_for_less_than_a_share() -> None:
    gate = Gate([A, B], depth_s=0.5)
    flood = [gate.ask("a") for _ in range(50)]
    few = [gate.ask("b") for _ in range(3)]
    assert gate.serve(6).count("b") == 3  # As soon as if a had asked for as little.
    assert all(one.sent for one in few)
    assert sum(one.sent for one in flood) == 4


def test_a_node_is_told_who_is_behind() -> None:
    gate = Gate([A, B], depth_s=0.5, credit_s=4.0)
    flood = [gate.ask("a") for _ in range(50)]
    gate.serve(10)
    few = gate.ask("b")
    gate.serve(1)
    assert few.sent
    assert 0.0 < few.passage.lead_s <= 4.0
    assert all(one.passage.lead_s == 0.0 for one in flood if one.sent)


@pytest.mark.parametrize(("patience", "sent"), [(4.0, True), (0.0, False)])
def test_nobody_waits_here_for_what_it_passes_at_the_node(patience: float, sent: bool) -> None:
    """A tenant that is behind is sent past its own long prompt, where the node will let it pass."""
    gate = Gate([A, B], depth_s=0.5)
    gate.report(patience=patience)
    flood = [gate.ask("a", prompt=text(number, 80_000)) for number in range(3)]
    long = gate.ask("b", prompt=text(10, 40_000))
    assert [one.sent for one in (*flood, long)] == [True, False, False, True]
    assert gate.ask("b", prompt=text(11, 400)).sent is sent
    assert not gate.ask("b", prompt=text(12, 40_000)).sent


def test_who_used_less_than_its_share_may_have_a_burst() -> None:
    gate = Gate([A, B], depth_s=0.5, credit_s=4.0, reply_price=0.0)
    for _ in range(30):
        gate.ask("a")
    gate.serve(10)
    for _ in range(20):
        gate.ask("b")
    # a's next one was sent; then b has four seconds for itself, and from there on they take turns.
    assert gate.serve(11)[1:6] == "bbbbb"
    assert gate.serve(8).count("b") == 4


def test_shares_follow_weights() -> None:
    gate = Gate([tenant("a", weight=3.0), B], depth_s=0.5, credit_s=0.0)
    for name in "ab":
        for _ in range(60):
            gate.ask(name)
    assert gate.serve(40).count("a") == pytest.approx(30, abs=2)


def test_cached_tokens_cost_little() -> None:
    """a's prompts are cached but for a tenth, b's are not: for each of b's, nine or ten of a's are served."""
    gate = Gate([A, B], depth_s=0.05, credit_s=0.0, reply_price=0.0)
    for number in range(60):
        gate.fleet.holds(0, text(10_000 + number, 3_600))
        assert gate.ask("a", prompt=text(10_000 + number)).choice.matched >= 800
    for _ in range(60):
        gate.ask("b")
    assert gate.serve(44).count("b") == 5


def test_a_tenant_is_charged_what_its_requests_really_cost() -> None:
    gate = Gate([A, B], depth_s=0.5, reply_price=2.0)
    one = gate.ask("a")
    flow = one.passage.flow
    before = flow.work_s
    one.end()
    one.finished(cached=900, output=1000)
    # 100 tokens of prefill, and a thousand that cost as much as two thousand of prefill.
    assert flow.work_s == pytest.approx(2100 / RATE)
    assert flow.work_s != before
    assert (flow.requests, flow.cached_tokens, flow.output_tokens) == (1, 900, 1000)
    one.finished(cached=0, output=0)  # A name that comes twice counts once.
    assert flow.work_s == pytest.approx(2100 / RATE)


def test_limits_count_prompts_and_replies() -> None:
    gate = Gate([tenant("a", tokens_per_second=100.0, burst_tokens=2500.0), B], depth_s=100.0)
    first = gate.ask("a")
    assert first.sent
    assert gate.ask("a").sent
    refused = gate.ask("a")
    assert isinstance(refused.error, Overloaded)
    assert (refused.error.status, refused.error.code) == (429, "rate_limit_exceeded")
    # 1,128 more are needed, 244 are there.
    assert refused.error.retry_after == 9.0
    assert gate.ask("b").sent
    first.finished(cached=1000, output=0)  # Its reply was none: 128 come back.
    assert gate.ask("a").error is not None
    gate.fleet.now += 7.7
    assert gate.ask("a").sent
    assert gate.admission.flows[0].refused[Refusal.RATE] == 2


def test_a_request_that_was_never_sent_is_not_charged() -> None:
    gate = Gate([tenant("a", tokens_per_second=1.0, burst_tokens=2300.0), B], depth_s=0.5)
    sent, held = gate.ask("a"), gate.ask("a")
    assert held.held
    assert gate.ask("a").error is not None
    held.end()
    again = gate.ask("a")
    assert again.held
    for one in (again, sent):
        one.end()
    assert gate.idle()
    assert gate.admission.flows[0].work_s == pytest.approx(sent.passage.cost)


def test_priorities_beyond_a_tenants_are_refused() -> None:
    gate = Gate([tenant("a", priority=-2), B])
    assert gate.ask("a", priority=-2).sent
    refused = gate.ask("a", priority=-3)
    assert refused.error is not None
    assert (refused.error.status, refused.error.param) == (403, "priority")
    assert "-2" in refused.error.message
    assert gate.ask("b", priority=-1).error is not None
    assert gate.ask("b", priority=5).sent


def test_a_full_queue_costs_whoever_takes_most_of_it() -> None:
    gate = Gate([A, B], depth_s=0.5, max_held=4)
    flood = [gate.ask("a") for _ in range(6)]
    assert [one.held for one in flood] == [False, True, True, True, True, False]
    assert flood[5].error is not None
    assert flood[5].error.status == 429
    b = [gate.ask("b") for _ in range(4)]
    assert b[0].sent
    # Each takes the place of a's newest, until they have as many.
    assert [one.error is None for one in b] == [True, True, True, False]
    assert [one.held for one in flood] == [False, True, True, False, False, False]
    assert gate.admission.held == 4
    assert {flow.name: flow.refused[Refusal.FULL] for flow in gate.admission.flows} == {"a": 3, "b": 1}


def test_bodies_are_bounded_together() -> None:
    gate = Gate(max_held_bytes=1000)
    gate.report(max_running=1)
    gate.ask()
    assert gate.ask(size=600).held
    assert gate.ask(size=600).error is not None
    assert gate.ask(size=400).held
    assert gate.admission.held_bytes == 1000


def test_retry_after_is_the_backlog_over_the_rate_at_which_it_drains() -> None:
    gate = Gate([A, B], depth_s=0.5, max_held=20)
    for _ in range(21):
        gate.ask("a")
    refused = gate.ask("a").error
    assert isinstance(refused, Overloaded)
    # 20 s of prefill wait for one node, of which nothing else is known.
    assert refused.retry_after == 20.0
    for _ in range(10):  # It does one second of it in two.
        gate.fleet.now += 2.0
        gate.serve(1)
        gate.ask("a")
    refused = gate.ask("a").error
    assert isinstance(refused, Overloaded)
    assert refused.retry_after == pytest.approx(40.0, rel=0.3)


def test_what_is_held_for_too_long_is_told_when_to_come_back() -> None:
    gate = Gate([A, B], depth_s=0.5)
    for _ in range(5):
        last = gate.ask("a")
    gate.fleet.now += 60.0
    error = gate.admission.expired(last.passage)
    last.refuse(error)
    assert (error.status, error.retry_after > 0.0) == (503, True)
    assert "60 s" in error.message
    assert gate.admission.held == 2  # Of the other three one may go now.
    assert last.passage.flow.refused[Refusal.LATE] == 1


def test_kv_is_left_for_others() -> None:
    """400 pages are 6,400 tokens, and each request takes 1,128."""
    gate = Gate([A, B], depth_s=100.0, free_share=1.0)
    a = [gate.ask("a")]
    gate.report(free=400)
    a += [gate.ask("a") for _ in range(5)]
    # Three leave more than they take.
    assert [one.sent for one in a] == [True, True, True, False, False, False]
    # b may take as much as a does, however little is left then, and no more.
    b = [gate.ask("b") for _ in range(5)]
    assert [one.sent for one in b] == [True, True, True, False, False]
    gate.report(free=600)
    assert [one.sent for one in a] == [True, True, True, True, True, False]


def test_time_makes_room_where_replies_are_not_streamed() -> None:
    """Nothing begins before its last token: the node is taken to be through with what it should be through with."""
    gate = Gate([A, B], depth_s=0.5)
    first, second = gate.ask("a"), gate.ask("a")
    assert first.sent
    gate.fleet.now += 0.4
    gate.report()
    assert second.held
    gate.fleet.now += 0.2
    gate.report(backlog=2000)  # It is slower than expected.
    assert second.held
    gate.report(backlog=0)
    assert second.sent


def test_a_node_that_goes_sends_who_waits_elsewhere() -> None:
    gate = Gate()
    gate.report(max_running=1)
    gate.ask()
    waiting = [gate.ask() for _ in range(3)]
    (node,) = gate.fleet.nodes
    node.state = NodeState.DOWN
    gate.admission.expire()
    assert all(one.rerouted for one in waiting)
    node.state = NodeState.READY
    more = [gate.ask() for _ in range(3)]
    gate.admission.on_void(node)
    assert all(one.rerouted for one in more)
    assert gate.admission.held == 0


@example([(0, 0), (0, 1), (0, 0), (0, 1), (0, 1), (0, 0), (4, 1), (0, 0), (0, 1), (4, 18)])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=80))
def test_every_account_returns_to_zero(steps: list[tuple[int, int]]) -> None:
    gate = Gate([A, tenant("b", weight=2.0)], nodes=2, depth_s=1.5, max_held=6)
    asked: list[Asked] = []
    for action, which in steps:
        live = [one for one in asked if one.error is None and not one.rerouted]
        if action <= 2 or not live:
            one = gate.ask("ab"[which % 2], priority=which % 3)
            asked.append(one)
        else:
            one = live[which % len(live)]
            if action == 3 and one.sent and not one.passage.begun:
                one.begin()
            elif action >= 4:
                one.end()
                asked.remove(one)
        held = [one for one in asked if one.held]
        assert gate.admission.held == len(held) <= 6
        assert gate.admission.held_s == pytest.approx(sum(one.passage.seconds for one in held))
        # Nobody waits for a node that would take it if it came now.
        for node in gate.fleet.nodes:
            lane = gate.fleet.scheduler.load_of(node).lane
            assert lane is None or lane.following(gate.fleet.now) is None
    for one in asked:
        if one.error is None:
            one.end()
    assert gate.idle()
