"""Placement: hits where they are, unless the node is too busy; bursts together, strangers apart."""

import random
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import PrefixIndex
from trunkline.router.body import Prompt
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.router.nodes import Node
from trunkline.router.scheduler import cost
from trunkline.router.scheduler.load import NodeLoad
from trunkline.router.scheduler.scheduler import Scheduler, Ticket
from trunkline.router.settings import SchedulerSettings
from trunkline.router.summaries import SummaryStatus
from trunkline.shared.canonical import of_prompt
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Finished, Load, ServedModel

SPACE = Namespace("f00d", "float32", "layout")
RATE = 1000.0


class ExactNode(Node):
    """A node that follows its events exactly, without the events."""

    @property
    def summary(self) -> SummaryStatus:
        return SummaryStatus.EXACT


class Fleet:
    """Nodes that serve one model, a scheduler, and a clock that stands still."""

    def __init__(self, count: int, *, exact: bool = True, **changes: object) -> None:
        self.now = 1000.0
        self.index = PrefixIndex()
        settings = SchedulerSettings(prefill_rate=RATE, max_running=10, seed=3, **changes)  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.index, settings, lambda: self.now)
        kind = ExactNode if exact else Node
        self.nodes = tuple(kind(index, f"http://127.0.0.1:{9000 + index}") for index in range(count))
        for node in self.nodes:
            node.models = {"m": ServedModel("m", SPACE, 4096) if exact else None}

    def send(self, prompt: Prompt, salt: str = "") -> Ticket:
        """Places a request and sends it to the best node."""
        placement = self.scheduler.place(prompt, salt, self.nodes)
        return self.scheduler.start(placement.choice(0), placement, f"r{random.random()}")

    def answer(self, ticket: Ticket) -> None:
        self.scheduler.begin(ticket)
        self.scheduler.finish(ticket)

    def holds(self, node: int, prompt: Prompt) -> None:
        """The node has published the whole prompt."""
        keys = PromptKeys(prompt, "", Seeds(), 4.0)
        chain = keys.chain(SPACE)
        depths = array("I", [keys.tokens_at(index + 1) for index in range(len(chain) // 8)])
        self.index.store(node, chain, depths, Tier.DEVICE)


def text(seed: int, size: int = 4000) -> Prompt:
    return Prompt("m", of_prompt("".join(random.Random(seed).choices("abcdefgh ", k=size))))


def tokens(seed: int, size: int = 1000) -> Prompt:
    return Prompt("m", array("i", random.Random(seed).choices(range(32_000), k=size)))


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


def test_nothing_is_assumed_across_tenants_or_models() -> None:
    fleet = Fleet(1, exact=False)
    fleet.send(text(1), "aa")
    assert fleet.send(text(1), "aa").choice.matched > 0
    assert fleet.send(text(1), "bb").choice.matched == 0
    fleet.nodes[0].models = None
    assert fleet.send(text(1)._replace(model="other"), "aa").choice.matched == 0


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
        assert (load.running, load.pending, *load.offer(0, fleet.now)) == (0,) * 5


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


# A report never hides what was just placed, and is believed about the rest.


def test_report_corrects_the_account_without_hiding_new_placements() -> None:
    load = NodeLoad(RATE, 10, 0.0)
    era = load.place(5000, 0.0)
    assert load.offer(1, 0.0)[1] >= 5.0
    for step in range(1, 4):  # The node works it off; it says so.
        load.report(Load(backlog_tokens=5000 - 1000 * step, running=1), float(step))
    assert load.offer(1, 3.0)[1] == pytest.approx(2.0, abs=0.1)
    load.place(3000, 3.0)
    load.report(Load(backlog_tokens=2000, running=1), 3.01)  # It was on the wire when this was written.
    assert load.offer(1, 3.01)[1] >= 5.0
    load.begin(5000, era)
    load.finish()


def test_old_report_is_not_believed() -> None:
    load = NodeLoad(RATE, 10, 0.0)
    load.place(4000, 0.0)
    for at in (0.1, 0.2, 0.3):
        load.report(Load(backlog_tokens=0, running=1), at)
    assert load.offer(1, 0.3)[1] < 0.1
    assert load.offer(1, 30.0)[1] >= 4.0


def test_requests_of_other_routers_count() -> None:
    load = NodeLoad(RATE, 10, 0.0)
    load.place(10, 0.0)
    load.report(Load(running=6, waiting=1), 0.1)
    assert load.share() == 0.7
    load.finish()
    assert load.share() == 0.6


# The ranking, as a pure function.

seconds = st.floats(0, 100)
offers = st.lists(st.tuples(seconds, seconds, st.floats(0, 2)), min_size=1, max_size=12)


@given(offers, st.floats(0, 1), st.integers())
def test_ranking_is_a_permutation_and_its_first_is_beaten_by_none(
    given_offers: list[cost.Offer], rho: float, seed: int
) -> None:
    weight = cost.queue_weight(rho)
    order = cost.rank(given_offers, weight, 0.9, 0.05, random.Random(seed))
    assert sorted(order) == list(range(len(given_offers)))
    work, wait, load = given_offers[order[0]]
    for other_work, other_wait, other_load in given_offers:
        if (other_load > 0.9) == (load > 0.9):
            assert not (other_work <= work and other_wait <= wait and (other_work < work or other_wait < wait))
    fulls = [given_offers[index][2] > 0.9 for index in order]
    assert fulls == sorted(fulls)


@given(offers, st.floats(0, 1), st.integers())
def test_costs_ascend_but_for_near_ties(given_offers: list[cost.Offer], rho: float, seed: int) -> None:
    weight = cost.queue_weight(rho)
    order = cost.rank(given_offers, weight, 10.0, 0.05, random.Random(seed))
    costs = [given_offers[index][0] + weight * given_offers[index][1] for index in order]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= min(costs) * 1.05 + cost.NEGLIGIBLE_S + 1e-6


def test_equal_offers_are_chosen_alike_often() -> None:
    chance = random.Random(5)
    counts = Counter(cost.rank([(1.0, 0.0, 0.0)] * 4, 1.0, 0.9, 0.05, chance)[0] for _ in range(4000))
    assert min(counts.values()) > 850


@pytest.mark.parametrize(("rho", "weight"), [(0.0, 0.5), (0.75, 0.25), (1.0, cost.MIN_WEIGHT), (3.0, cost.MIN_WEIGHT)])
def test_weight_of_the_queue_falls_with_utilisation(rho: float, weight: float) -> None:
    assert cost.queue_weight(rho) == weight
