"""Random traffic on a holder: a slot whose generation has not changed is the page that was located, and a lease that
lasts has kept its pages."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.agent.transfer.holding import Cache, question
from tests.agent.transfer.test_lender import Clock, locate
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.lender import Lent
from trunkline.shared.names import Tier

CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
SESSIONS = st.integers(1, 3)


@dataclass
class Asked:
    session: int
    blocks: tuple[int, ...]
    answers: list[Lent] = field(default_factory=list)


class LendingMachine(RuleBasedStateMachine):
    @initialize(pages=st.integers(8, 16), host=st.integers(2, 16), peer=st.integers(1, 12), total=st.integers(1, 20))
    def start(self, pages: int, host: int, peer: int, total: int) -> None:
        self.clock = Clock()
        self.parts = Cache(pages, host, limits=LeaseLimits(peer, total, 10.0), clock=self.clock)
        self.asked: list[Asked] = []
        self.held: list[list[int]] = []
        self.cleared: set[int] = set()
        """Leases of pages that the cache has forgotten since."""

    @rule(blocks=CHAINS)
    def compute(self, blocks: tuple[int, ...]) -> None:
        if not self.held:
            self.parts.compute(*blocks)

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        """A sequence computes on pages of its own."""
        pages = self.parts.cache.allocate(count)
        if pages is not None:
            for page in pages:
                self.parts.memory.write(page, b"sequence")
            self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule()
    def give_back(self) -> None:
        self.parts.cache.release(self.held.pop())

    @rule(session=SESSIONS, blocks=CHAINS, data=st.data())
    def ask(self, session: int, blocks: tuple[int, ...], data: st.DataObject) -> None:
        asked = Asked(session, blocks)
        self.asked.append(asked)
        first = data.draw(st.integers(0, len(blocks) - 1))
        self.parts.lender.ask(session, locate(*blocks, first=first), 0.0, asked.answers.append)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        for answer in asked.answers:
            self.parts.lender.release(asked.session, answer.number)

    @rule(session=SESSIONS)
    def leave(self, session: int) -> None:
        self.parts.lender.leave(session)

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def turn(self) -> None:
        self.parts.turn()

    @rule()
    def settle(self) -> None:
        self.parts.settle()

    @rule()
    def clear(self) -> None:
        self.parts.cache.clear()
        self.cleared.update(self.parts.lender.leases._leases)

    @invariant()
    def what_has_not_changed_is_what_was_located(self) -> None:
        lasting = self.parts.lender.leases._leases
        levels = {level.tier: level for level in self.parts.cache.readable}
        for asked in self.asked:
            keys = question(*asked.blocks).keys
            for answer in asked.answers:
                for page, row in enumerate(answer.descriptors, answer.first):
                    tier, slot = Tier(row["tier"]), int(row["slot"])
                    if levels[tier].generations[slot] == row["generation"]:
                        assert self.parts.content(tier, slot) == keys[page].to_bytes(8, "little")
                    else:
                        assert answer.number not in lasting or answer.number in self.cleared
        self.parts.cache.check()
        self.parts.lender.check()

    def teardown(self) -> None:
        for session in (1, 2, 3):
            self.parts.lender.leave(session)
        for pages in self.held:
            self.parts.cache.release(pages)
        self.parts.settle()
        assert len(self.parts.lender.leases) == self.parts.lender.leases.pages == 0
        for tier in self.parts.cache.tiers():
            assert (tier.in_flight, tier.leased, tier.resident) == (0, 0, tier.cached)


class TestLending(LendingMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
