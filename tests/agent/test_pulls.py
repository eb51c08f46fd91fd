"""Pages of other nodes: what comes is used, what does not is computed, and nothing is kept on either side."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.agent.test_migration import Node, chain_of, content
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.peers import Found, Slots, Wanted
from trunkline.agent.transfer.backend import Status
from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.shared.names import PAGE_TOKENS, Tier

D, H = Tier.DEVICE, Tier.HOST
HOLDER = "there:1"


class Holder:
    """The other nodes: has whatever chain it is asked for, up to `has` pages. Its answers come when a test says so."""

    def __init__(self, node: Node, has: int = 1000, lends: int = 1000) -> None:
        self.has, self.lends = has, lends
        self.asked: list[tuple[Wanted, Callable[[Found | None], None]]] = []
        self.questions = 0
        self.leases: dict[int, object] = {}
        self.bad: dict[int, Status] = {}
        """What becomes of a page, by its place in the chain."""
        self._node = node

    def locate(
        self, holder: str, wanted: Wanted, wait_s: float, timeout_s: float, answered: Callable[[Found | None], None]
    ) -> None:
        assert holder == HOLDER
        assert 0 < wait_s < timeout_s
        self.questions += 1
        self.asked.append((wanted, answered))

    def answer(self) -> None:
        for wanted, answered in self.asked:
            end = min(len(wanted.keys), self.has, wanted.first + self.lends)
            rows = np.array([(H, index, 0) for index in range(wanted.first, end)], DESCRIPTOR)
            found = SimpleNamespace(descriptors=rows, held=min(self.has, len(wanted.keys)), wanted=wanted)
            self.leases[id(found)] = found
            answered(found)  # type: ignore[arg-type]
        self.asked.clear()

    def say_nothing(self) -> None:
        for _, answered in self.asked:
            answered(None)
        self.asked.clear()

    def read(self, found: Found, sources: Descriptors, targets: Slots, timeout_s: float) -> bytes:
        assert id(found) in self.leases
        assert timeout_s > 0
        statuses = []
        host = self._node.memory.lower.host
        for index, target in zip(sources["slot"].tolist(), targets.tolist(), strict=True):
            status = self.bad.get(index, Status.OK)
            statuses.append(status)
            tokens = found.wanted.tokens  # type: ignore[attr-defined]
            length = (index + 1) * PAGE_TOKENS
            text = content(Chain(chain_of().namespace, np.frombuffer(tokens, np.int32).tolist()), index)
            assert len(tokens) >= 4 * length
            host.blocks[target] = 255
            if status == Status.OK:
                host.blocks[target, :8] = host.blocks[target, -8:] = np.frombuffer(text, np.uint8)
        return bytes(statuses)

    def release(self, found: Found) -> None:
        del self.leases[id(found)]


class Reader(Node):
    """A node that pulls."""

    def __init__(self, pages: int = 12, host: int = 24, **holder: int) -> None:
        super().__init__(pages, host)
        self.holder = Holder(self, **holder)
        self.cache.read_from(self.holder)
        self.now = 0.0
        self.cache._migration.fetching._clock = lambda: self.now  # type: ignore[union-attr]
        self.pulls = self.cache._migration.pulls  # type: ignore[union-attr]

    def pull(self, *blocks: int, offered: int = 1000) -> Fetch | None:
        chain = chain_of(*blocks)
        chain.holder, chain.offered = HOLDER, offered
        pages = self.cache.match(chain)
        self.cache.begin(chain)
        self.cache.release(pages, used=False)
        return self.cache.fetch(chain)

    def wait(self, fetch: Fetch) -> None:
        """As an engine does, until the fetch ends."""
        while self.cache.awaits(fetch):
            self.settle()
            self.now += 0.01

    def is_clean(self) -> bool:
        """Nothing is under way, held or leased."""
        self.settle()
        host = self.cache.tiers()[1]
        idle = host.resident == host.cached and not host.in_flight
        return idle and not self.pulls.moving and not self.holder.leases and not self.cache.moving


def test_what_another_node_holds_comes_and_is_verified_by_use() -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3, 4)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    node.holder.answer()
    node.wait(fetch)
    assert node.tiers(1, 2, 3, 4) == [D, D, D, D]
    node.compute(1, 2, 3, 4)
    assert fetch.came == 4
    assert node.pulls.counters().pages == 4
    assert node.is_clean()


def test_no_more_is_asked_for_than_the_holder_is_said_to_have() -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3, 4, offered=3)
    assert fetch is not None
    assert [len(wanted.keys) for wanted, _ in node.holder.asked] == [3]
    node.holder.answer()
    node.wait(fetch)
    node.compute(1, 2, 3)
    assert node.pull(1, 2, 3, 4, offered=3) is None
    assert node.is_clean()


def test_only_what_is_missing_is_asked_for_and_it_hangs_on_what_is_here() -> None:
    node = Reader()
    node.compute(1, 2)
    fetch = node.pull(1, 2, 3, 4)
    assert fetch is not None
    assert node.holder.asked[0][0].first == 2
    node.holder.answer()
    node.wait(fetch)
    node.compute(1, 2, 3, 4)
    assert fetch.came == 2
    assert node.is_clean()


def test_after_pages_of_the_host_come_those_of_another_node() -> None:
    node = Reader(pages=6, host=24)
    for blocks in ((1, 2, 3), (5, 6, 7, 8)):
        node.compute(*blocks)
        node.settle()
    assert node.tiers(1, 2, 3) == [D, H, H]
    fetch = node.pull(1, 2, 3, 4)
    assert fetch is not None
    assert fetch.expected == 3
    node.holder.answer()
    node.wait(fetch)
    assert node.tiers(1, 2, 3, 4) == [D, D, D, D]
    assert node.is_clean()


def test_two_requests_for_the_same_pages_are_one_transfer() -> None:
    node = Reader()
    one, two = node.pull(1, 2, 3, 4), node.pull(1, 2, 3, 9)
    assert one is not None
    assert two is not None
    node.holder.answer()
    node.settle()
    node.wait(one)
    node.wait(two)
    assert node.holder.questions == 1
    assert (one.came, two.came) == (4, 3)
    assert node.pulls.counters().pages == 4
    assert node.is_clean()


def test_a_request_that_joins_midway_gets_the_rest() -> None:
    node = Reader()
    one = node.pull(1, 2, 3, 4, 5, 6)
    assert one is not None
    node.holder.answer()
    node.cache.turn()
    node.memory.lanes[-1].step()
    node.cache.turn()
    assert node.tiers(1, 2, 3, 4) == [H, H, H, None]
    two = node.pull(1, 2, 3, 4, 5, 6)
    assert two is not None
    node.settle()
    three = node.pull(1, 2, 3, 4, 5, 6)
    assert three is not None
    for fetch in (one, two, three):
        node.wait(fetch)
        assert fetch.came == 6
    assert node.holder.questions == 1
    assert node.is_clean()


@pytest.mark.parametrize("status", [Status.CHANGED, Status.DAMAGED, Status.ABSENT, Status.LOST])
def test_a_page_that_does_not_come_ends_the_pull_and_what_came_is_used(status: Status) -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3, 4, 5)
    assert fetch is not None
    node.holder.bad = {2: status}
    node.holder.answer()
    node.wait(fetch)
    assert node.tiers(1, 2, 3, 4, 5) == [D, D, None, None, None]
    assert node.pulls.counters().bad == {status.name.lower(): 1}
    node.compute(1, 2, 3, 4, 5)
    assert node.is_clean()


def test_a_holder_that_has_nothing_or_does_not_answer() -> None:
    node = Reader(has=0)
    fetch = node.pull(1, 2)
    assert fetch is not None
    node.holder.answer()
    node.wait(fetch)
    fetch = node.pull(1, 2)
    assert fetch is not None
    node.holder.say_nothing()
    node.wait(fetch)
    assert node.pulls.counters().unanswered == 1
    assert fetch.chain.holder == "", "asked once"
    node.compute(1, 2)
    assert node.is_clean()


def test_what_the_holder_lends_piecemeal_is_asked_for_again() -> None:
    node = Reader(has=5, lends=2)
    fetch = node.pull(1, 2, 3, 4, 5, 6)
    rounds = 0
    while fetch is not None:
        rounds += 1
        node.holder.answer()
        node.wait(fetch)
        chain = fetch.chain
        node.cache.release(node.cache.match(chain), used=False)
        fetch = node.cache.fetch(chain)
    assert rounds == 3
    assert node.tiers(1, 2, 3, 4, 5, 6) == [D] * 5 + [None]
    assert node.is_clean()


def test_a_slow_pull_is_abandoned_before_it_costs_a_fifth_of_computing() -> None:
    node = Reader()
    node.cache.prefill_rate = PAGE_TOKENS * 10.0  # 0.1 s a page
    fetch = node.pull(1, 2, 3, 4, 5)
    assert fetch is not None
    node.holder.answer()
    node.cache.turn()
    assert node.cache.awaits(fetch)
    node.now = 0.129  # a fifth of 0.5 s, and the slack
    assert node.cache.awaits(fetch)
    node.memory.lanes[-1].step()
    node.cache.turn()
    assert node.cache.awaits(fetch), "three pages are in the host"
    while node.cache.awaits(fetch) and node.tiers(1, 2, 3) != [D, D, D]:
        node.memory.lanes[0].step() if node.memory.lanes[0].waiting else None
        node.cache.turn()
    node.now = 0.42  # three pages came, which are 0.3 s won
    assert node.cache.awaits(fetch)
    node.now = 0.44
    assert not node.cache.awaits(fetch)
    assert node.pulls.counters().abandoned == 1
    node.compute(1, 2, 3, 4, 5)
    assert node.is_clean()


def test_without_a_known_rate_a_pull_may_pause_for_a_quarter_of_a_second() -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3, 4)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    node.now = 0.24
    assert node.cache.awaits(fetch)
    node.now = 0.26
    assert not node.cache.awaits(fetch)
    node.holder.answer()
    assert node.is_clean(), "an answer that comes late is given back"


def test_a_request_that_goes_leaves_nothing_behind() -> None:
    node = Reader()
    for answers in (False, True):
        fetch = node.pull(1, 2, 3, 4, 5, 6, 7)
        assert fetch is not None
        if answers:
            node.holder.answer()
            node.cache.turn()
        node.cache.abandon(fetch)
        node.cache.abandon(fetch)
        node.holder.answer()
        assert node.is_clean()
    assert node.pulls.counters().abandoned == 2


def test_a_slow_holder_is_not_asked_where_computing_is_quicker() -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3)
    assert fetch is not None
    node.holder.answer()
    node.cache.turn()
    node.memory.lanes[-1].step(seconds=30.0)
    node.wait(fetch)
    node.cache.prefill_rate = PAGE_TOKENS * 1.0
    assert node.pull(7, 8) is None
    node.cache.prefill_rate = PAGE_TOKENS * 0.01
    assert node.pull(7, 8) is not None


def test_no_room_in_the_host_no_pull() -> None:
    node = Reader(pages=8, host=4)
    fetch = node.pull(1, 2, 3, 4, 5, 6)
    assert fetch is not None
    held = node.cache._migration.host.pool.allocate(4)  # type: ignore[union-attr]
    assert held is not None
    node.holder.answer()
    node.wait(fetch)
    node.cache._migration.host.pool.release(held)  # type: ignore[union-attr]
    assert fetch.came == 0
    assert node.is_clean()


def test_what_was_computed_meanwhile_is_not_taken_over() -> None:
    node = Reader()
    fetch = node.pull(1, 2, 3, 4)
    assert fetch is not None
    node.holder.answer()
    node.cache.turn()
    node.compute(1, 2, 3, 4)
    node.settle()
    node.wait(fetch)
    assert node.tiers(1, 2, 3, 4) == [D, D, D, D]
    assert node.is_clean()


def test_so_many_pulls_at_a_time_and_closing_ends_them() -> None:
    node = Reader()
    fetches = [node.pull(block, block + 100) for block in range(10)]
    assert sum(fetch is not None for fetch in fetches) == 8
    node.holder.answer()
    node.cache.turn()
    assert node.cache.close()


class PullMachine(RuleBasedStateMachine):
    """Requests that pull, compute and go, while answers and pages are late, bad or never come."""

    @initialize(device=st.integers(16, 20), host=st.integers(4, 24), has=st.integers(0, 6), lends=st.integers(1, 6))
    def begin(self, device: int, host: int, has: int, lends: int) -> None:
        self.node = Reader(device, host, has=has, lends=lends)
        self.fetches: list[Fetch] = []

    @rule(blocks=st.lists(st.integers(1, 2), min_size=1, max_size=5))
    def pull(self, blocks: list[int]) -> None:
        if fetch := self.node.pull(*blocks):
            self.fetches.append(fetch)

    @rule(blocks=st.lists(st.integers(1, 2), min_size=1, max_size=5))
    def compute(self, blocks: list[int]) -> None:
        self.node.compute(*blocks)

    @rule(bad=st.dictionaries(st.integers(0, 5), st.sampled_from([Status.CHANGED, Status.LOST]), max_size=2))
    def answer(self, bad: dict[int, Status]) -> None:
        self.node.holder.bad = bad
        self.node.holder.answer()

    @rule()
    def say_nothing(self) -> None:
        self.node.holder.say_nothing()

    @rule(which=st.integers(0, 20), fail=st.booleans())
    def step(self, which: int, fail: bool) -> None:
        lanes = [lane for lane in self.node.memory.lanes if lane.waiting]
        if lanes:
            lanes[which % len(lanes)].step(fail=fail)

    @rule()
    def turn(self) -> None:
        self.node.cache.turn()

    @precondition(lambda self: self.fetches)
    @rule(which=st.integers(0, 20), seconds=st.sampled_from([0.0, 0.01, 0.3]))
    def wait(self, which: int, seconds: float) -> None:
        self.node.now += seconds
        self.node.cache.awaits(self.fetches[which % len(self.fetches)])

    @precondition(lambda self: self.fetches)
    @rule(which=st.integers(0, 20))
    def leave(self, which: int) -> None:
        self.node.cache.abandon(self.fetches.pop(which % len(self.fetches)))

    @rule()
    def clear(self) -> None:
        self.node.cache.clear()

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "node"):
            self.node.cache.check()

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        for fetch in self.fetches:
            self.node.cache.abandon(fetch)
        self.node.holder.answer()
        assert self.node.is_clean()
        # Whatever is there now is right.
        for blocks in ((1, 1, 2, 2), (1, 2, 1, 2), (2, 2, 2)):
            self.node.compute(*blocks)


TestPulls = PullMachine.TestCase
TestPulls.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
