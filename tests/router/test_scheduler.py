"""Placement: hits where they are, unless the node is too busy; bursts together, strangers apart."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.router.fleet import RATE, Fleet, offer, text, tokens
from trunkline.router.body import Prompt
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Finished, Load, ServedModel


@pytest.mark.parametrize("prompt", [text(1), tokens(1)])
def test_a_published_prefix_attracts(prompt: Prompt) -> None:
    fleet = Fleet(4)
    fleet.holds(2, prompt)
    for _ in range(5):
        ticket = fleet.send(prompt)
        assert ticket.choice.node.index == 2
        assert ticket.choice.matched >= 0.9 * 1000 - 16
        fleet.answer(ticket)


@pytest.mark.parametrize("exact", [True, False])
def test_a_burst_of_equal_new_prefixes_goes_to_one_node(exact: bool) -> None:
    fleet = Fleet(4, exact=exact, max_claims=1 << 16)
    tickets = [fleet.send(tokens(1)) for _ in range(9)]
    assert len({ticket.choice.node.index for ticket in tickets}) == 1
    assert [ticket.choice.matched > 0 for ticket in tickets] == [False] + [True] * 8


def test_a_burst_of_twenty_stays_together_below_the_load_limit() -> None:
    fleet = Fleet(4)
    for node in fleet.nodes:
        fleet.scheduler.on_load(node, Load(max_running=64, prefill_rate=RATE))
    assert len({fleet.send(text(5, 8000)).choice.node.index for _ in range(20)}) == 1


@pytest.mark.parametrize("exact", [True, False])
def test_strangers_spread(exact: bool) -> None:
    fleet = Fleet(4, exact=exact)
    counts = Counter(fleet.send(text(seed)).choice.node.index for seed in range(32))
    assert sorted(counts.values()) == [8, 8, 8, 8]


def test_short_requests_spread_by_those_under_way() -> None:
    fleet = Fleet(4)
    tickets = [fleet.send(text(seed, 64)) for seed in range(20)]
    for ticket in tickets:
        fleet.scheduler.begin(ticket)
    counts = Counter(fleet.send(text(100 + seed, 64)).choice.node.index for seed in range(12))
    assert max(counts.values()) <= 4


def test_a_full_node_gives_up_its_hits_unless_all_are_full() -> None:
    fleet = Fleet(2)
    prompt = text(1)
    fleet.holds(0, prompt)
    fleet.scheduler.on_load(fleet.nodes[0], Load(max_running=10, running=9, prefill_rate=RATE))
    first = fleet.send(prompt)
    assert first.choice.node.index == 0  # 0.9 is not above 0.9.
    assert fleet.send(prompt).choice.node.index == 1
    fleet.scheduler.on_load(fleet.nodes[0], Load(max_running=10, running=10, prefill_rate=RATE))
    fleet.scheduler.on_load(fleet.nodes[1], Load(max_running=10, running=30, waiting=20, prefill_rate=RATE))
    other = text(2)
    fleet.holds(0, other)
    assert fleet.send(other).choice.node.index == 0


def test_what_waits_for_long_is_claimed_until_its_turn() -> None:
    """Each node has a minute of work; the next turn of a conversation comes before the first is computed."""
    fleet = Fleet(2, max_running=1000)
    for seed in range(2):
        fleet.send(tokens(100 + seed, int(60 * RATE)))
    first = fleet.send(tokens(1))
    for seed in range(4):  # others come meanwhile, so that claims age
        fleet.now += 10.0
        fleet.send(tokens(200 + seed, 20))
    placement = fleet.scheduler.place(tokens(1), "", fleet.nodes)
    matched = {choice.node: choice.matched for choice in map(placement.choice, range(2))}
    assert matched.pop(first.choice.node) > 900
    assert set(matched.values()) == {0}


def test_a_prefix_does_not_flap_between_nodes_that_are_alike() -> None:
    """Hysteresis: what it costs to compute it again keeps it where it is, however chance and short queues change."""
    fleet = Fleet(4)
    chance = random.Random(5)
    moves, last = 0, None
    for turn in range(200):
        fleet.now += chance.uniform(0.0, 1.0)
        others = [fleet.send(text(1000 + 4 * turn + seed, chance.randrange(64, 800))) for seed in range(4)]
        ticket = fleet.send(tokens(1, 2000))
        fleet.holds(ticket.choice.node.index, tokens(1, 2000))
        moves += last not in (None, ticket.choice.node.index)
        last = ticket.choice.node.index
        for one in (*others, ticket):
            fleet.answer(one)
    assert moves == 0


def test_nothing_is_assumed_across_tenants_or_models() -> None:
    fleet = Fleet(1, exact=False)
    fleet.send(text(1), "aa")
    assert fleet.send(text(1), "aa").choice.matched > 0
    assert fleet.send(text(1), "bb").choice.matched == 0
    fleet.nodes[0].models = None
    assert fleet.send(replace(text(1), model="other"), "aa").choice.matched == 0


def test_nodes_of_several_namespaces_are_ranked_together() -> None:
    fleet = Fleet(6)
    for node in fleet.nodes[::2]:
        node.models = {"m": ServedModel("m", Namespace("beef", "float32", "layout"), 4096)}
    prompt = tokens(1)
    fleet.holds(3, prompt)
    placement = fleet.scheduler.place(prompt, "", fleet.nodes)
    choices = [placement.choice(rank) for rank in range(6)]
    assert {choice.node for choice in choices} == set(fleet.nodes)
    assert all(choice.load is fleet.scheduler.load_of(choice.node) for choice in choices)
    assert choices[0].node.index == 3
    assert [choice.matched + choice.uncached for choice in choices] == [1000] * 6
    assert [choice.matched for choice in choices[1:]] == [0] * 5
    assert len({choice.claim for choice in choices}) == 2
    with pytest.raises(IndexError):
        placement.choice(6)


def test_accounts_return_to_zero_whatever_happens() -> None:
    fleet = Fleet(3)
    tickets = [fleet.send(text(seed)) for seed in range(30)]
    chance = random.Random(1)
    for step, ticket in enumerate(tickets):
        if chance.random() < 0.5:
            fleet.scheduler.begin(ticket)
        for node in fleet.nodes:
            fleet.now += 0.01
            fleet.scheduler.on_load(node, Load(backlog_tokens=step, running=step % 5))
        fleet.scheduler.finish(ticket)
    for node in fleet.nodes:
        fleet.scheduler.on_load(node, Load())
        fleet.scheduler.on_load(node, Load())
        load = fleet.scheduler.load_of(node)
        load.settle()
        assert (load.running, load.pending, *offer(load, 1, 0.0)) == (0,) * 5


def test_void_node_is_forgotten_and_its_old_requests_end_without_harm() -> None:
    fleet = Fleet(1, exact=False)
    ticket = fleet.send(text(1))
    fleet.scheduler.on_void(fleet.nodes[0])
    again = fleet.send(text(1))
    assert again.choice.matched == 0
    fleet.answer(ticket)
    assert fleet.scheduler.load_of(fleet.nodes[0]).running == 1


def test_bytes_per_token_are_learned_per_model() -> None:
    fleet = Fleet(1)
    prompt = text(1, 8000)
    for number in range(300):
        placement = fleet.scheduler.place(prompt, "", fleet.nodes)
        fleet.scheduler.finish(fleet.scheduler.start(placement.choice(0), placement, f"r{number}"))
        fleet.scheduler.on_finished(fleet.nodes[0], Finished(f"r{number}", 4000, 3984, 1, 0.0, 0.1))
    accuracy = fleet.scheduler.accuracy
    assert accuracy.bytes_per_token("m") == pytest.approx(2.0, rel=0.05)
    assert accuracy.bytes_per_token("other") == 4.0
    assert accuracy.requests == 300
    assert fleet.scheduler.place(prompt, "", fleet.nodes).tokens == pytest.approx(4000, rel=0.05)


def test_false_promises_are_counted() -> None:
    fleet = Fleet(1)
    prompt = tokens(1)
    fleet.holds(0, prompt)
    for number, cached in enumerate((992, 500, 0)):
        placement = fleet.scheduler.place(prompt, "", fleet.nodes)
        fleet.scheduler.start(placement.choice(0), placement, f"r{number}")
        fleet.scheduler.on_finished(fleet.nodes[0], Finished(f"r{number}", 1000, cached, 1, 0.0, 0.1))
    fleet.scheduler.on_finished(fleet.nodes[0], Finished("unknown", 1000, 0, 1, 0.0, 0.1))
    accuracy = fleet.scheduler.accuracy
    assert (accuracy.requests, accuracy.short) == (3, 2)
    assert (accuracy.expected_tokens, accuracy.real_tokens) == (3 * placement.choice(0).matched, 1492)


def test_a_new_incarnation_is_taken_to_be_like_the_fleet() -> None:
    fleet = Fleet(2)
    scheduler = fleet.scheduler
    for number in range(200):
        for node, seconds in zip(fleet.nodes, (8.0, 1.0), strict=True):
            scheduler.on_finished(node, Finished(f"r{number}", 4000, 0, 1, 0.0, seconds))
    assert scheduler.load_of(fleet.nodes[0]).pace.slowness > 1.3
    scheduler.on_void(fleet.nodes[0])
    assert scheduler.load_of(fleet.nodes[0]).pace.slowness == 1.0
    assert scheduler.prices.seconds(4000, 0) > 1.5
