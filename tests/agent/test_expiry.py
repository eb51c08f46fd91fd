"""Pages on disk that nobody used for too long."""

from tests.agent.cache_model import Replay
from trunkline.agent.cache.catalog import Catalog, Reason
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE
from trunkline.agent.cache.expiry import BATCH, Expiry
from trunkline.agent.cache.level import LowerLevel
from trunkline.agent.cache.visits import Visits
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace


class Disk:
    """A tier whose pages live for 64 seconds."""

    def __init__(self, pages: int = 16) -> None:
        self.now = 0.0
        self.visits = Visits(pages)
        self.catalog = Catalog(Replay())
        self.level = LowerLevel(Tier.DISK, pages, self.visits)
        self.expiry = Expiry(self.catalog, self.visits, 64.0, lambda: self.now)

    def store(self, *blocks: int) -> Chain:
        """A page for each, one after the other."""
        chain = Chain(Namespace("m", "d", "l"), [block for block in blocks for _ in range(PAGE_TOKENS)])
        pages = self.level.pool.allocate(len(blocks))
        assert pages is not None
        for index, page in enumerate(pages):
            parent = chain.entries[-1] if chain.entries else None
            chain.entries.append(self.catalog.add(chain.keys[index], parent, chain, chain.page(index), GONE))
            assert self.level.store(chain.entries[-1], page)
        self.level.let_go(pages)
        self.use(chain)
        return chain

    def use(self, chain: Chain) -> None:
        visit = self.visits.blank()
        for entry in chain.entries:
            entry.used = visit
        self.level.touched(chain.entries)

    def there(self, chain: Chain) -> int:
        return sum(entry.disk is not None for entry in chain.entries)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.expiry.turn(self.level)
        self.level.check()


def test_what_is_not_used_goes_in_time_and_a_use_gives_it_all_its_time_again() -> None:
    disk = Disk()
    disk.wait(1)
    one, other = disk.store(1, 2), disk.store(3, 4)
    disk.wait(40)
    disk.use(other)
    disk.wait(23)
    assert (disk.there(one), disk.there(other)) == (2, 2)
    disk.wait(4)  # leaf first, a page of a path at a time
    assert (disk.there(one), disk.there(other)) == (0, 2)
    disk.wait(36)
    assert disk.there(other) == 2
    disk.wait(4)
    assert disk.there(other) == 0
    assert disk.catalog.gone[Tier.DISK, Reason.EXPIRED] == 4
    assert disk.level.pool.free == 16


def test_what_is_pinned_or_held_stays() -> None:
    disk = Disk()
    disk.wait(1)
    pinned, held = disk.store(1, 2), disk.store(3, 4)
    disk.visits.protected.pinned = frozenset(pinned.keys)
    copy = held.entries[1].disk
    assert copy is not None
    disk.level.hold([copy.page])
    disk.wait(80)
    assert (disk.there(pinned), disk.there(held)) == (2, 2)
    disk.level.let_go([copy.page])
    disk.visits.protected.pinned = frozenset()
    disk.wait(3)
    assert (disk.there(pinned), disk.there(held)) == (0, 0)


def test_many_go_in_steps() -> None:
    disk = Disk(2 * BATCH)
    disk.wait(1)
    chains = [disk.store(block) for block in range(BATCH + 10)]
    disk.wait(63)
    assert sum(map(disk.there, chains)) == BATCH + 10
    for _ in range(3):
        disk.now += 1.0
        disk.expiry.turn(disk.level)
    left = sum(map(disk.there, chains))
    assert left in (0, 10)
    disk.wait(1)
    assert sum(map(disk.there, chains)) == 0
