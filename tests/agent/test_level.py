"""The pages of one tier: what is lent stays until somebody must have its room, and what goes leaves a mark."""

from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.level import DeviceLevel
from trunkline.agent.cache.visits import Visits
from trunkline.shared.namespace import Namespace


def line(level: DeviceLevel, count: int) -> list[Entry]:
    """So many members, each the child of the one before, that nobody holds."""
    entries: list[Entry] = []
    pages = level.pool.allocate(count)
    assert pages is not None
    for index, page in enumerate(pages):
        parent = entries[-1] if entries else None
        entries.append(Entry(index + 1, parent, Namespace("m", "d", "l"), b"", page, 16 * (index + 1)))
        level.add(entries[-1])
    level.let_go(pages)
    level.check()
    return entries


def test_a_generation_says_how_often_a_page_was_let_go() -> None:
    level = DeviceLevel(4, Visits(8))
    line(level, 3)
    assert level.generations.tolist() == [0, 0, 0, 0]
    assert level.evict(2) is not None
    assert level.generations.tolist() == [0, 1, 1, 0]
    level.clear()
    assert level.generations.tolist() == [1, 1, 1, 0]


def test_a_private_page_that_is_given_back_was_nobodys_to_read() -> None:
    level = DeviceLevel(2, Visits(8))
    level.let_go(level.pool.allocate(1) or [])
    assert level.generations.tolist() == [0, 0]


def test_what_is_lent_stays_with_what_comes_before_it() -> None:
    level = DeviceLevel(5, Visits(8))
    entries = line(level, 4)
    level.lend(entries[1].page)
    level.lend(entries[1].page)
    assert level.stats().leased == 1
    assert level.evict(3) is None
    assert [entry.key for entry in level.evict(2) or ()] == [4, 3]
    assert level.evict(1) is None
    level.check()
    level.take_back(entries[1].page)
    assert level.evict(1) is None
    level.take_back(entries[1].page)
    assert level.stats().leased == 0
    assert [entry.key for entry in level.evict(2) or ()] == [2, 1]
    level.check()


def test_a_page_that_a_sequence_holds_too_is_the_sequences() -> None:
    level = DeviceLevel(2, Visits(8))
    (entry,) = line(level, 1)
    level.lend(entry.page)
    level.hold([entry.page])
    stats = level.stats()
    assert (stats.resident, stats.cached, stats.leased) == (1, 0, 0)


def test_when_room_is_wanted_leases_are_asked_to_end() -> None:
    level = DeviceLevel(4, Visits(8))
    entries = line(level, 4)
    lent = [entries[3].page, entries[2].page]
    for page in lent:
        level.lend(page)

    def give_back() -> bool:
        if lent:
            level.take_back(lent.pop(0))
            return True
        return False

    level.on_short = give_back
    assert [entry.key for entry in level.evict(1) or ()] == [4]
    assert len(lent) == 1
    assert level.evict(4) is None
    assert len(lent) == 1, "that would not have helped"
    assert [entry.key for entry in level.evict(3) or ()] == [3, 2, 1]
    assert not lent
    level.check()


def test_a_page_that_is_cleared_is_its_readers_until_they_have_done() -> None:
    level = DeviceLevel(2, Visits(8))
    (entry,) = line(level, 1)
    page = entry.page
    level.lend(page)
    level.clear()
    level.check()
    assert level.stats().leased == 1
    assert level.generations[page] == 1
    level.take_back(page)
    assert level.stats().free == 2
    level.check()
