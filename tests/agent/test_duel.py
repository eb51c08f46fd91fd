"""Two orders of eviction beside each other: the one that finds more decides."""

from collections.abc import Iterator, Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.duel import COVERS, SAMPLE_PAGES, Duel, Shadow
from trunkline.agent.cache.visits import Visits
from trunkline.kernels.core import hash64
from trunkline.shared.names import Tier

PATHS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=40)


def key(*path: int) -> int:
    return hash64(bytes(path))


def oldest_first(paths: Sequence[Sequence[int]], capacity: int) -> Iterator[int]:
    """What a cache of prefixes finds that lets the leaf go which was used least recently."""
    used: dict[tuple[int, ...], int] = {}
    for at, path in enumerate(paths):
        ends = [tuple(path[:end]) for end in range(1, len(path) + 1)]
        found = next((number for number, end in enumerate(ends) if end not in used), len(ends))
        yield found
        used.update(dict.fromkeys(ends[:found], at))
        for number, end in enumerate(ends[found:], found):
            if len(used) == capacity:
                parents = {page[:-1] for page in used} | {ends[number - 1] if number else ()}
                leaves = [page for page in used if page not in parents]
                if not leaves:
                    break
                del used[min(leaves, key=lambda leaf: used[leaf])]
            used[end] = at


@given(PATHS, st.integers(1, 12))
def test_a_shadow_is_like_its_model(paths: list[list[int]], capacity: int) -> None:
    heat = Visits(8).heat
    shadow = Shadow(capacity, heat, 0, heat.take_oldest)
    found = []
    for path in paths:
        visit = heat.visit([])
        found.append(shadow.request([(key(*path[:end]), visit) for end in range(1, len(path) + 1)]))
    # One visit each: of leaves of the same visit there is never more than one.
    assert found == list(oldest_first(paths, capacity))


def ask(visits: Visits, path: Sequence[int], found: int) -> None:
    visit = visits.begin(path, found)
    assert visit is not None
    visits.end(visit, path, 10)


def duel_of(visits: Visits, pages: int) -> Duel:
    visits.open(Tier.DEVICE, pages)
    return visits.duels[Tier.DEVICE]


def test_before_one_of_them_leads_it_is_least_recently_used_first() -> None:
    visits = Visits(8)
    duel = duel_of(visits, 4)
    assert not duel.learned
    for first in range(100):
        ask(visits, [key(first)], 0)
    assert duel.lead == 0
    assert not duel.learned


def test_in_a_loop_the_learned_order_leads() -> None:
    visits = Visits(8)
    duel = duel_of(visits, 20)
    for at in range(600):
        ask(visits, [key(at % 30)], 1 if at >= 30 else 0)
    assert duel.learned


class Scripted:
    """A small cache that finds what it is told to."""

    def __init__(self, found: Sequence[int]) -> None:
        self._found = iter(found)

    def request(self, path: Sequence[tuple[int, int]]) -> int:
        return next(self._found)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=200))
def test_deciding_never_costs_more_than_half_of_the_lead_there_was(found: list[tuple[int, int]]) -> None:
    duel = duel_of(Visits(8), 4)
    duel._learned, duel._oldest = Scripted([one for one, _ in found]), Scripted([other for _, other in found])  # type: ignore[assignment]
    most = step = 0.0
    for one, other in found:
        decided = duel.learned
        duel.request([], 0, 0, 0)
        step = max(step, other - one if decided else 0.0)
        most = max(most, duel.lead)
        assert duel.loss <= most / COVERS + step + 1e-9


def test_what_deciding_has_cost_must_be_made_up_for() -> None:
    duel = duel_of(Visits(8), 4)
    leads = [*[4] * 20, *[-4] * 15, *[4] * 60]
    duel._learned, duel._oldest = Scripted([10 + lead for lead in leads]), Scripted([10] * len(leads))  # type: ignore[assignment]
    decided = []
    for _ in leads:
        duel.request([], 0, 0, 0)
        decided.append(duel.learned)
    first, stop = decided.index(True), decided.index(False, decided.index(True))
    again = decided.index(True, stop)
    assert first < 20 < stop < 35 < again
    assert duel.learned


def test_large_tiers_are_sampled() -> None:
    visits = Visits(8)
    duel = duel_of(visits, 100_000)
    fresh = count()
    path = [hash64(next(fresh).to_bytes(8, "little")) for _ in range(10_000)]
    ask(visits, path, 0)
    ask(visits, path, len(path))
    sampled = 10_000 * SAMPLE_PAGES / 100_000
    assert sampled / 2 < len(duel._learned._pages) < 2 * sampled
    assert duel._learned._pages.keys() == duel._oldest._pages.keys()
