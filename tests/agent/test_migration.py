"""Pages between tiers: rules one by one, then random traffic with moves that are late, fail and arrive damaged."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.agent.tiers import NAMESPACE, Memory, TierReplay
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.fetch import Fetch
from trunkline.kernels.core import hash64
from trunkline.shared.names import PAGE_TOKENS, Tier


def chain_of(*blocks: int, tail: int = 1) -> Chain:
    """A whole page of each number, then `tail` tokens."""
    return Chain(NAMESPACE, [block for block in blocks for _ in range(PAGE_TOKENS)] + [99] * tail)


def content(chain: Chain, index: int) -> bytes:
    """What the KV of a page depends on: all tokens up to its end."""
    return hash64(chain.tokens[: (index + 1) * PAGE_TOKENS].tobytes()).to_bytes(8, "little")


class Node:
    """A cache with tiers, used as an engine uses it."""

    def __init__(self, pages: int, host: int, batch: int = 3, disk: Path | None = None, slots: int = 64) -> None:
        self.memory = Memory(pages, host, batch, disk, slots)
        self.sink = TierReplay()
        self.cache = PageCache(pages, self.sink, self.memory.lower)
        self.memory.lanes.before = self.check_told

    def check_told(self) -> None:
        """Pages are about to be written: a router is told already of all that was there and is no more."""
        catalog = self.cache._catalog
        assert self.sink.tiers.keys() == catalog.entries.keys() | set(catalog.texts.published())
        assert all(self.sink.tiers[key] is entry.tier for key, entry in catalog.entries.items())

    def compute(self, *blocks: int) -> None:
        """A request that comes and ends."""
        chain = chain_of(*blocks)
        pages = self.cache.match(chain)
        self.cache.begin(chain)
        for index, page in enumerate(pages):
            assert self.memory.read(page) == content(chain, index)
        fresh = self.cache.allocate(len(chain.keys) - len(pages))
        assert fresh is not None
        self.check_told()
        for index, page in enumerate(fresh, len(pages)):
            self.memory.write(page, content(chain, index))
            pages.append(self.cache.commit(chain, index, page))
        self.cache.end(chain, pages, 0)

    def settle(self) -> None:
        """Turns and moves until nothing happens any more."""
        while True:
            self.cache.turn()
            self.cache.check()
            if not self.memory.lanes.run():
                return

    def tiers(self, *blocks: int) -> list[Tier | None]:
        """What a router believes about the pages of a chain."""
        return [self.sink.tiers.get(key) for key in chain_of(*blocks).keys]

    def fetch(self, *blocks: int) -> Fetch | None:
        chain = chain_of(*blocks)
        pages = self.cache.match(chain)
        self.cache.begin(chain)
        self.cache.release(pages, used=False)
        self.cache.leave(chain)
        return self.cache.fetch(chain)

    def bring(self, *fetches: Fetch) -> None:
        """Waits for them, as a scheduler does between its steps, until none of them is worth it any more."""
        while [fetch for fetch in fetches if self.cache.awaits(fetch)]:
            assert self.cache.moving
            self.settle()


D, H = Tier.DEVICE, Tier.HOST


def half_in_the_host() -> Node:
    """Of the pages 1, 2, 3 the device has kept the first."""
    node = Node(pages=4, host=16)
    for blocks in ((1, 2, 3), (5, 6)):
        node.compute(*blocks)
        node.settle()
    assert node.tiers(1, 2, 3) == [D, H, H]
    return node


def test_beyond_the_mark_the_least_recently_used_go_to_the_host() -> None:
    node = Node(pages=10, host=10)
    node.compute(1, 2, 3, 4)
    node.compute(5, 6, 7, 8, 9)
    node.settle()
    assert node.cache.stats().free == 1
    node.compute(10)
    assert node.cache.stats().free == 0
    node.settle()
    assert node.cache.stats().free == 1
    assert node.tiers(1, 2, 3, 4) == [D, D, D, H]
    # The path of what went is there too, so that the host is complete in itself.
    assert [tier.resident for tier in node.cache.tiers()] == [9, 4]


def test_what_is_needed_at_once_is_copied_at_once() -> None:
    node = Node(pages=4, host=8)
    for block in range(6):
        node.compute(block)
        node.settle()
    assert node.cache.counters().urgent_pages == 0
    node.compute(10, 11, 12)
    assert [node.tiers(block) for block in range(6)] == [[H]] * 5 + [[D]]
    assert node.cache.counters().urgent_pages == 2


def test_of_a_path_longer_than_the_tier_below_nothing_is_copied() -> None:
    node = Node(pages=12, host=5)
    node.compute(*range(1, 8))
    for block in (11, 21):
        node.compute(block, block + 1)
        node.settle()
    assert node.cache.pool.free == 1, "less than is to be kept free"
    assert node.cache.counters().routes["device", "host"].pages == 0


def test_siblings_go_down_together_to_where_their_parent_is_already() -> None:
    node = Node(pages=4, host=8)
    node.compute(1)
    node.compute(2, 3, 4)
    node.settle()
    node.compute(1, 11)
    node.compute(1, 12)
    node.compute(20, 21, 22, 23)
    node.cache.check()
    assert [node.tiers(1, 11), node.tiers(1, 12)] == [[H, H], [H, H]]
    assert node.cache.tiers()[1].cached == node.cache.tiers()[1].resident


def test_pages_come_back_when_they_are_asked_for() -> None:
    node = half_in_the_host()
    urgent = node.cache.counters().urgent_pages
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    assert node.cache.moving
    assert node.cache.awaits(fetch), "asked twice, it comes once"
    node.bring(fetch)
    assert node.tiers(1, 2, 3) == [D] * 3
    assert node.cache.counters().routes["host", "device"].pages == 2
    assert node.cache.counters().urgent_pages == urgent, "its room was made while it waited"
    node.compute(1, 2, 3)


def test_a_computing_engine_that_has_given_its_share_is_left_alone() -> None:
    node = half_in_the_host()
    migration = node.cache._migration
    assert migration is not None
    migration._pace.spend(10.0)
    node.cache.turn(computing=True)
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    assert node.cache.moving, "it is only held back"
    assert not any(lane.moves for lane in node.memory.lanes)
    node.cache.turn()
    node.bring(fetch)
    assert node.tiers(1, 2, 3) == [D] * 3


def test_what_comes_back_may_push_the_rest_of_it_out() -> None:
    """The first batch needs room on the device, what was there needs room in the host, and the next batch was there."""
    node = Node(pages=8, host=6, batch=3)
    node.compute(1, 2, 3, 4, 5, 6)
    node.settle()
    node.compute(*range(11, 19))
    assert node.tiers(1, 2, 3, 4, 5, 6) == [H] * 6
    fetch = node.fetch(1, 2, 3, 4, 5, 6)
    assert fetch is not None
    node.bring(fetch)
    assert node.tiers(1, 2, 3, 4, 5, 6) == [D, D, D, None, None, None]
    node.compute(1, 2, 3, 4, 5, 6)


def test_no_more_comes_back_than_the_device_keeps() -> None:
    """One page is kept free: of ten, the last one would push out the first, and so on until the wait is given up."""
    node = Node(pages=10, host=20)
    whole = range(1, 11)
    node.compute(*whole)
    node.settle()
    node.compute(*range(21, 30))
    node.settle()
    assert node.tiers(*whole) == [H] * 10
    fetch = node.fetch(*whole)
    assert fetch is not None
    node.bring(fetch)
    assert node.tiers(*whole) == [D] * 9 + [H]
    assert node.fetch(*whole) is None


def test_what_two_fetches_bring_stays_until_both_have_it_all() -> None:
    """Together they leave less than is kept free: that is not taken from what they wait for."""
    node = Node(pages=20, host=40, batch=10)
    first, second = range(1, 10), range(11, 21)
    for blocks in (first, second, range(21, 39)):
        node.compute(*blocks)
        node.settle()
    assert node.tiers(*first, *second)[:9] == [H] * 9
    fetches = [fetch for blocks in (first, second) if (fetch := node.fetch(*blocks))]
    assert [fetch.expected for fetch in fetches] == [9, 10]
    node.bring(*fetches)
    assert [fetch.came for fetch in fetches] == [9, 10]
    assert node.cache.counters().routes["host", "device"].pages == 19
    node.settle()
    assert node.cache.stats().free == 2, "kept free again"


def test_what_a_fetch_has_brought_goes_after_what_only_waits() -> None:
    node = Node(pages=10, host=20)
    node.compute(1, 2, 3)
    node.settle()
    node.compute(*range(11, 19))
    node.settle()
    assert node.tiers(1, 2, 3) == [D, H, H]
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    waiting = chain_of(*range(11, 19))
    pages = node.cache.match(waiting)
    node.cache.begin(waiting)
    node.cache.release(pages, used=False)
    for _ in range(2):  # room, and what comes
        assert node.cache.awaits(fetch)
        node.settle()
    taken = node.cache.allocate(6)
    assert taken is not None
    assert node.tiers(1, 2, 3) == [D] * 3
    node.cache.abandon(fetch)
    node.cache.leave(waiting)
    assert node.cache.counters().protected_pages == 0
    taken += node.cache.allocate(2) or []
    assert node.tiers(1, 2, 3)[2] is H
    node.cache.release(taken)
    node.cache.check()


def test_what_a_fetch_brings_need_not_follow_what_is_on_the_device() -> None:
    """With a window it is the end of the prefix that is brought, wherever the one on the device ends."""
    node = Node(pages=10, host=20)
    node.compute(*range(1, 7))
    chain = chain_of(*range(1, 7))
    last = [entry for key in chain.keys[3:5] if (entry := node.cache.find(key))]
    assert Fetch(chain, last, 1.0).keys == chain.keys[:5]


def test_two_readers_share_a_move() -> None:
    node = half_in_the_host()
    one, two = node.fetch(1, 2, 3), node.fetch(1, 2, 3)
    assert one is not None
    assert two is not None
    assert node.cache.awaits(one)
    assert node.cache.awaits(two)
    (up,) = [lane for lane in node.memory.lanes if lane.name == "host-to-device"]
    assert up.moves == 1
    node.bring(one, two)
    assert node.cache.counters().routes["host", "device"].pages == 2


def test_a_page_that_is_read_while_it_is_copied_stays_where_it_is() -> None:
    node = Node(pages=4, host=8)
    node.compute(1, 2, 3, 4)
    node.cache.turn()
    chain = chain_of(1, 2, 3, 4)
    pages = node.cache.match(chain)
    assert len(pages) == 4
    node.settle()
    assert [node.memory.read(page) for page in pages] == [content(chain, index) for index in range(4)]
    assert node.tiers(1, 2, 3, 4) == [D] * 4
    node.cache.release(pages)
    node.settle()
    assert node.tiers(1, 2, 3, 4) == [D, D, D, H]


def test_a_page_computed_meanwhile_makes_the_one_on_its_way_superfluous() -> None:
    node = Node(pages=10, host=10)
    node.compute(1, 2, 3, 4)
    node.compute(5, 6, 7, 8, 9, 10)
    node.settle()
    assert node.tiers(1, 2, 3, 4) == [D, D, D, H]
    fetch = node.fetch(1, 2, 3, 4)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    node.compute(1, 2, 3, 4)
    assert node.tiers(1, 2, 3, 4) == [D] * 4
    assert node.cache.moving
    node.settle()
    assert not node.cache.awaits(fetch)
    assert node.tiers(1, 2, 3, 4) == [D] * 4
    assert node.cache.stats().in_flight == 0


def test_a_fetch_ends_at_its_deadline() -> None:
    node = half_in_the_host()
    now = 0.0
    node.cache._migration.fetching._clock = lambda: now  # type: ignore[union-attr]
    node.cache.prefill_rate = 16.0
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    now = 2.5  # two pages: two seconds to compute
    assert not node.cache.awaits(fetch)
    assert node.cache.counters().late_fetches == 1
    node.settle()


def test_what_is_quicker_to_compute_is_not_fetched() -> None:
    node = half_in_the_host()
    fetch = node.fetch(1, 2, 3)
    assert fetch is not None
    assert node.cache.awaits(fetch)
    up = next(lane for lane in node.memory.lanes if lane.name == "host-to-device")
    up.step(seconds=100.0)
    node.settle()
    node.compute(5, 6)
    node.settle()
    node.cache.prefill_rate = 1000.0
    assert node.fetch(1, 2, 3) is None
    assert node.cache.counters().skipped_pages > 0


def test_choices_that_were_wrong_are_counted() -> None:
    node = Node(pages=10, host=40)
    node.compute(1, 2, 3)
    node.settle()
    up = next(lane for lane in node.memory.lanes if lane.name == "host-to-device")
    now = 0.0
    node.cache._migration.fetching._clock = lambda: now  # type: ignore[union-attr]

    def request(page_s: float, computes_s: float, came_s: float = 0.1) -> tuple[int, int]:
        """For pages in the host. The engine is believed to compute a page in `page_s`, and does in `computes_s`; it
        takes `came_s` until something has come."""
        nonlocal now
        node.compute(*range(11, 20))
        node.settle()
        chain = chain_of(1, 2, 3)
        node.cache.prefill_rate = PAGE_TOKENS / page_s
        node.cache.release(node.cache.match(chain))
        node.cache.begin(chain)
        if fetch := node.cache.fetch(chain):
            while node.cache.awaits(fetch):
                now += came_s
                while up.waiting:
                    up.step(seconds=came_s)
                node.settle()
        node.cache.prefill_rate = PAGE_TOKENS / computes_s
        node.cache.end(chain, node.cache.match(chain), 1)
        counters = node.cache.counters()
        return counters.wrong_fetches, counters.wrong_skips

    assert request(0.01, 0.01, came_s=0.05) == (1, 0), "what came in 0.05 s would have taken 0.03 to compute"
    assert request(1.0, 1.0) == (1, 0), "what came in 0.1 s would have taken three to compute"
    assert request(0.01, 0.01) == (1, 0), "not asked for, and rightly so"
    assert request(0.01, 9.0) == (1, 1), "not asked for, and computed much more slowly than it would have come"


@dataclass(eq=False)
class Held:
    chain: Chain
    pages: list[int] = field(default_factory=list)
    committed: int = 0


class MigrationMachine(RuleBasedStateMachine):
    """An engine's calls in any order, between moves that land late, not at all, or damaged."""

    @initialize(
        pages=st.integers(2, 20), host=st.integers(1, 24), batch=st.integers(1, 5), slots=st.none() | st.integers(1, 30)
    )
    def start(self, pages: int, host: int, batch: int, slots: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.node = Node(pages, host, batch, self.folder / "cache" if slots else None, slots or 0)
        self.held: list[Held] = []
        self.fetches: list[Fetch] = []
        self.tickets: list[int] = []

    @rule(blocks=st.lists(st.integers(0, 2), max_size=6))
    def admit(self, blocks: list[int]) -> None:
        cache, chain = self.node.cache, chain_of(*blocks)
        self.node.sink.parents |= dict(zip(chain.keys[1:], chain.keys, strict=False))
        pages = cache.match(chain)
        cache.begin(chain)
        for index, page in enumerate(pages):
            assert self.node.memory.read(page) == content(chain, index)
        if fetch := cache.fetch(chain):
            self.fetches.append(fetch)
        fresh = cache.allocate(len(chain.keys) - len(pages))
        self.node.check_told()
        if fresh is None:
            cache.release(pages)
            return
        for index, page in enumerate(fresh, len(pages)):
            self.node.memory.write(page, content(chain, index))
        self.held.append(Held(chain, pages + fresh, len(pages)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        for index in range(held.committed, len(held.chain.keys)):
            held.pages[index] = self.node.cache.commit(held.chain, index, held.pages[index])
        held.committed = len(held.chain.keys)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ended=st.booleans())
    def release(self, data: st.DataObject, ended: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.held.remove(held)
        for index in range(len(held.pages)):
            assert self.node.memory.read(held.pages[index]) == content(held.chain, index)
        if ended:
            self.node.cache.end(held.chain, held.pages, 5)
        else:
            self.node.cache.release(held.pages)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def bring(self, data: st.DataObject) -> None:
        fetch = data.draw(st.sampled_from(self.fetches))
        if not self.node.cache.awaits(fetch):
            self.fetches.remove(fetch)

    @rule()
    def turn(self) -> None:
        self.node.cache.turn()

    @precondition(lambda self: any(lane.waiting for lane in self.node.memory.lanes))
    @rule(data=st.data(), fail=st.booleans(), bad=st.sets(st.integers(0, 4), max_size=2))
    def land(self, data: st.DataObject, fail: bool, bad: set[int]) -> None:
        lanes = [lane for lane in self.node.memory.lanes if lane.waiting]
        data.draw(st.sampled_from(lanes)).step(bad, fail=fail)

    @rule()
    def settle(self) -> None:
        self.node.settle()

    @rule()
    def time_passes(self) -> None:
        migration = self.node.cache._migration
        assert migration is not None
        now = migration.fetching._clock() + 1.0
        migration.fetching._clock = lambda: now
        if migration._disk is not None:
            migration._disk._clock = migration._disk.offload._clock = lambda: now

    @rule()
    def step(self) -> None:
        if self.tickets:
            self.node.cache.pool.step_end(self.tickets.pop())
        else:
            self.tickets.append(self.node.cache.pool.step_begin())

    @rule()
    def clear(self) -> None:
        self.node.cache.clear()

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "node"):
            return
        cache = self.node.cache
        cache.check()
        believed = {key: entry.tier for key, entry in cache._catalog.entries.items()}
        assert self.node.sink.tiers == believed
        for tier in cache.tiers():
            assert tier.free + tier.resident + tier.in_flight == tier.total

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        cache = self.node.cache
        for ticket in self.tickets:
            cache.pool.step_end(ticket)
        for held in self.held:
            cache.release(held.pages)
        self.node.settle()
        for tier in cache.tiers():
            assert (tier.in_flight, tier.resident) == (0, tier.cached)
        cache.clear()
        assert all(tier.free == tier.total for tier in cache.tiers())
        assert cache.close()
        shutil.rmtree(self.folder)


TestMigration = MigrationMachine.TestCase
TestMigration.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
