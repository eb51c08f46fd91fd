"""Two or more schedulers that tell each other, without a network: what one places, the others count."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.router.fleet import RATE, SPACE, ExactNode, text
from trunkline.kernels.core import PrefixIndex
from trunkline.router.replicas import outbox
from trunkline.router.replicas.messages import Batch
from trunkline.router.replicas.peers import MAX_PEERS, Peers
from trunkline.router.replicas.scheduler import SharedScheduler
from trunkline.router.scheduler.scheduler import Ticket
from trunkline.router.settings import SchedulerSettings
from trunkline.shared.lease import LEASE_S
from trunkline.shared.wire import Finished, Load, ServedModel


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """A router without sockets. Every replica has `Node` objects of its own, with other numbers."""

    def __init__(self, name: str, clock: Clock, nodes: int = 3, shift: int = 0) -> None:
        self.clock = clock
        self.wakes = 0
        self.scheduler = SharedScheduler(
            PrefixIndex(),
            SchedulerSettings(prefill_rate=RATE, max_running=10, seed=3),
            clock,
            router=name,
            wake=self.wake,
        )
        self.peers = Peers(self.scheduler, clock)
        self.nodes = tuple(ExactNode(index + shift, f"http://127.0.0.1:{9000 + index}") for index in range(nodes))
        for node in self.nodes:
            node.models = {"m": ServedModel("m", SPACE, 4096)}

    def wake(self) -> None:
        self.wakes += 1

    def send(self, seed: int, size: int = 4000) -> Ticket:
        placement = self.scheduler.place(text(seed, size), "", self.nodes)
        return self.scheduler.start(placement.choice(0), placement, f"r{seed}")

    def tell(self, *others: "Replica", whole: bool = False) -> Batch:
        batch = self.scheduler.outbox.take(self.nodes, self.clock.now, whole=whole)
        for other in others:
            other.peers.receive(batch, other.nodes)
        return batch

    def seen(self) -> list[tuple[float, float]]:
        """Wait and fill of each node, as placement sees them."""
        loads = [self.scheduler.load_of(node) for node in self.nodes]
        for load in loads:
            load.settle()
        return [(load.wait_s, load.fill) for load in loads]


def pair() -> tuple[Replica, Replica]:
    clock = Clock()
    return Replica("a", clock), Replica("b", clock, shift=7)


def test_what_one_router_places_the_other_counts_and_claims() -> None:
    one, other = pair()
    ticket = one.send(1)
    node = one.nodes.index(ticket.choice.node)  # type: ignore[arg-type]
    one.tell(other)
    assert other.seen() == one.seen()
    assert other.seen()[node][0] > 0
    # The next request of the burst goes where the first one is being computed, whichever router it comes to.
    assert other.nodes.index(other.send(1).choice.node) == node  # type: ignore[arg-type]


def test_without_telling_the_other_knows_nothing() -> None:
    one, other = pair()
    one.send(1)
    assert other.seen() == [(0.0, 0.0)] * 3


def test_begin_and_finish_are_told() -> None:
    one, other = pair()
    ticket = one.send(1)
    one.tell(other)
    one.scheduler.begin(ticket)
    one.tell(other)
    assert other.seen() == one.seen()
    one.scheduler.finish(ticket)
    one.tell(other)
    assert other.seen() == [(0.0, 0.0)] * 3


def test_a_lost_batch_is_counted_and_the_next_whole_one_heals() -> None:
    one, other = pair()
    one.tell(other)
    one.send(1)
    one.tell()  # lost
    one.tell(other)
    assert other.peers.missed == 1
    assert other.seen() == [(0.0, 0.0)] * 3
    one.tell(other, whole=True)
    assert other.seen() == one.seen()


def test_a_batch_that_comes_twice_does_no_harm() -> None:
    one, other = pair()
    one.send(1)
    batch = one.tell(other)
    other.peers.receive(batch, other.nodes)
    assert other.seen() == one.seen()
    assert other.peers.missed == 0


def test_a_share_ends_with_the_lease_of_its_router() -> None:
    one, other = pair()
    one.send(1)
    one.tell(other)
    other.clock.now += LEASE_S - 0.1
    assert other.peers.expire(other.nodes) == []
    assert max(other.seen())[1] > 0
    other.clock.now += 0.2
    assert other.peers.expire(other.nodes) == ["a"]
    assert other.seen() == [(0.0, 0.0)] * 3
    assert other.peers.heard() == {}


def test_a_node_that_is_found_later_gets_its_share() -> None:
    one, other = pair()
    all_nodes, other.nodes = other.nodes, ()
    one.send(1)
    one.tell(other)
    other.nodes = all_nodes
    for node in other.nodes:
        other.peers.fold(node)
    assert other.seen() == one.seen()


def test_the_share_of_another_incarnation_does_not_count() -> None:
    one, other = pair()
    one.send(1)
    batch = one.tell()
    stale = tuple(msgspec.structs.replace(share, node="another epoch") for share in batch.shares)
    other.peers.receive(msgspec.structs.replace(batch, shares=stale), other.nodes)
    assert other.seen() == [(0.0, 0.0)] * 3


def test_shares_survive_reports_and_reports_do_not_count_them_twice() -> None:
    """A node reports all that was placed on it, whoever did; none of it is somebody else's."""
    one, other = pair()
    ticket = one.send(1)
    one.tell(other)
    before = other.seen()
    index = one.nodes.index(ticket.choice.node)  # type: ignore[arg-type]
    report = Load(running=1, backlog_tokens=ticket.choice.uncached, prefill_rate=RATE)
    for replica in (one, other):
        replica.scheduler.on_load(replica.nodes[index], report)
    assert other.seen() == one.seen() == before


def test_finished_reports_are_learned_by_both() -> None:
    one, other = pair()
    one.send(1)
    for replica in (one, other):
        replica.scheduler.on_finished(replica.nodes[0], Finished("r1", 1000, 0, 1, 0.0, 2.0))
    assert one.scheduler.prices.per_token == other.scheduler.prices.per_token > 1 / RATE


def test_utilisation_is_the_fleets() -> None:
    one, other = pair()
    for seed in range(6):
        one.send(seed)
    one.tell(other, whole=True)
    loads = [
        (one.scheduler.load_of(mine), other.scheduler.load_of(theirs))
        for mine, theirs in zip(one.nodes, other.nodes, strict=True)
    ]
    now = one.clock.now
    assert [theirs.utilisation(now) for _, theirs in loads] == [mine.utilisation(now) for mine, _ in loads]
    assert sum(theirs.utilisation(now) for _, theirs in loads) > 0


def test_the_outbox_wakes_once_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_CLAIM_BYTES", 600)
    one, other = pair()
    for seed in range(10):
        one.send(seed)
    assert one.wakes == 1
    assert one.scheduler.outbox.claims_kept > 0
    batch = one.tell(other)
    assert sum(len(claim.keys) for claim in batch.claims) <= 600
    assert other.seen() == one.seen(), "accounts are complete whatever became of the claims"
    one.send(11)
    assert one.wakes == 2


def test_a_node_that_was_removed_is_not_told_of_and_not_remembered() -> None:
    one, other = pair()
    ticket = one.send(1)
    removed = ticket.choice.node
    one.nodes = tuple(node for node in one.nodes if node is not removed)
    one.scheduler.on_void(removed)
    one.scheduler.finish(ticket)
    assert one.tell(other).shares == ()
    assert removed not in one.scheduler._loads


def test_too_many_routers_are_refused_and_counted() -> None:
    one, other = pair()
    batch = one.tell()
    for number in range(MAX_PEERS + 3):
        other.peers.receive(msgspec.structs.replace(batch, router=str(number)), other.nodes)
    assert len(other.peers.heard()) == MAX_PEERS
    assert other.peers.refused == 3


class Fleet(RuleBasedStateMachine):
    """Three routers, a network that loses batches. After whole batches each sees the sum of all accounts."""

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.replicas = [Replica(name, self.clock, shift=shift) for shift, name in enumerate("abc")]
        self.tickets: list[tuple[Replica, Ticket]] = []
        self.seed = 0

    @rule(who=st.integers(0, 2), size=st.integers(200, 8000))
    def place(self, who: int, size: int) -> None:
        self.seed += 1
        self.tickets.append((self.replicas[who], self.replicas[who].send(self.seed, size)))

    @precondition(lambda self: self.tickets)
    @rule(which=st.integers(0, 99), end=st.booleans())
    def go_on(self, which: int, end: bool) -> None:
        replica, ticket = self.tickets[which % len(self.tickets)]
        if end:
            replica.scheduler.finish(ticket)
            del self.tickets[which % len(self.tickets)]
        elif not ticket.begun:
            replica.scheduler.begin(ticket)

    @rule(who=st.integers(0, 2), lost=st.booleans(), whole=st.booleans())
    def tell(self, who: int, lost: bool, whole: bool) -> None:
        others = [replica for replica in self.replicas if replica is not self.replicas[who]]
        self.replicas[who].tell(*([] if lost else others), whole=whole)

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.9]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def nothing_is_negative(self) -> None:
        for replica in getattr(self, "replicas", []):
            assert all(wait >= 0 and fill >= 0 for wait, fill in replica.seen())

    def teardown(self) -> None:
        if not hasattr(self, "replicas"):
            return
        for replica in self.replicas:
            replica.tell(*(other for other in self.replicas if other is not replica), whole=True)
        first, *others = [replica.seen() for replica in self.replicas]
        for seen in others:
            assert near(seen, first)
        running = sum(replica.scheduler.load_of(node).running for replica in self.replicas for node in replica.nodes)
        assert running == len(self.tickets)


def near(seen: list[tuple[float, float]], expected: list[tuple[float, float]]) -> bool:
    return all(one == pytest.approx(other) for one, other in zip(seen, expected, strict=True))


TestFleet: Any = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
