"""Hot and cold pages go to groups of slots of their own, as long as there is room."""

from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.agent.cache.disk_level import DiskLevel
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.placement import GROUP, Placement
from trunkline.agent.cache.visits import Visits
from trunkline.kernels.core import PagePool

Batches = list[tuple[list[bool], Random]]
BATCHES = st.lists(st.tuples(st.lists(st.booleans(), max_size=90), st.randoms()), max_size=12)


def take(placement: Placement, hot: Sequence[bool]) -> list[int]:
    taken = placement.take(hot)
    assert taken is not None
    return taken


@settings(deadline=None)
@given(st.integers(1, 300), BATCHES)
def test_every_free_slot_is_given_out_once_whatever_its_kind(pages: int, batches: Batches) -> None:
    pool = PagePool(pages)
    placement = Placement(pool)
    held: dict[int, bool] = {}
    for hot, chance in batches:
        taken = placement.take(hot)
        if len(hot) > pages - len(held):
            assert taken is None
            gone = chance.sample(sorted(held), min(len(held), len(hot)))
            pool.release(gone)
            for slot in gone:
                del held[slot]
            continue
        assert taken is not None
        assert len(set(taken)) == len(hot)
        assert held.keys().isdisjoint(taken)
        held.update(zip(taken, hot, strict=True))
        assert all(placement.hot[slot] == kind for slot, kind in held.items())
    pool.check()
    assert pool.free == pages - len(held)


def test_what_is_cold_leaves_whole_groups_free() -> None:
    pool = PagePool(8 * GROUP)
    placement = Placement(pool)
    cold: list[int] = []
    while pool.free:
        taken = take(placement, [True, False] * 8)
        cold += taken[1::2]
    pool.release(cold)
    assert sorted(pool.free_in_groups()) == [0] * 4 + [GROUP] * 4


def test_the_next_ones_go_where_there_is_most_room_among_their_kind() -> None:
    pool = PagePool(6 * GROUP)
    placement = Placement(pool)
    hot = [take(placement, [True] * GROUP) for _ in range(3)]
    cold = [take(placement, [False] * GROUP) for _ in range(3)]
    pool.release(hot[0][:10] + hot[1][:20] + cold[0][:15])
    assert take(placement, [True] * 5) == hot[1][:5]
    assert take(placement, [False] * 15) == cold[0][:15]
    assert take(placement, [False] * 2) == hot[0][:2]  # a cold one has no room, and this is not being filled


def test_kinds_are_known_again() -> None:
    pool = PagePool(3 * GROUP)
    placement = Placement(pool)
    pool.allocate(3 * GROUP)
    free = [*range(10), *range(2 * GROUP, 2 * GROUP + 15)]
    pool.release(free)
    slots = np.setdiff1d(np.arange(3 * GROUP, dtype=np.uint32), free)
    placement.adopt(slots, slots >= GROUP)
    assert take(placement, [False] * 5) == [0, 1, 2, 3, 4]
    assert not placement.hot[GROUP - 1]
    assert placement.hot[GROUP]


def test_a_page_is_hot_that_is_expected_back_sooner_than_is_usual() -> None:
    visits = Visits(8)
    level = DiskLevel(64, visits)
    entries = [Entry(key, None, None, b"", -1, 16, used=visits.blank()) for key in range(4)]
    taken = level.take(entries)
    assert taken is not None
    assert not level.placement.hot[taken].any()  # nothing is known yet of any
    visits.protected.pinned = frozenset([2])
    taken = level.take(entries)
    assert taken is not None
    assert level.placement.hot[taken].tolist() == [False, False, True, False]
