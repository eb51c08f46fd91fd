"""What is learned from who used which pages."""

from trunkline.agent.cache.visits import Visits


def goes_first(visits: Visits, offered: dict[int, int]) -> int | None:
    """Of pages with their visits."""
    for page, visit in offered.items():
        visits.heat.offer(0, page, visit)
    return visits.heat.take(0)


def note(visits: Visits, keys: list[int], found: int, reply_tokens: int) -> tuple[int, int]:
    """A request that comes and ends; its visits to what it found and to what it added."""
    visit = visits.begin(keys, found)
    assert visit is not None
    return visit.trunk, visits.end(visit, keys, reply_tokens)


def test_a_request_is_a_visit_to_what_it_found_and_one_to_what_it_added() -> None:
    visits = Visits(8)
    first = visits.heat.now
    assert note(visits, [1, 2, 3], 0, 10) == (0, first)
    assert note(visits, [1, 2, 3, 4], 3, 10) == (first + 1, first + 2)
    assert note(visits, [1, 2, 3, 4], 4, 10) == (first + 3, first + 3)
    assert visits.begin([], 0) is None
    assert visits.heat.now == first + 4


def test_before_anything_is_learned_the_least_recently_used_goes() -> None:
    visits = Visits(8)
    first, second = note(visits, [1], 0, 0)[1], note(visits, [2], 0, 0)[1]
    assert goes_first(visits, {7: second, 8: first}) == 8


def test_the_longer_chains_that_come_back_outlive_the_short_ones_that_do_not() -> None:
    visits = Visits(8)
    for key in range(0, 100_000, 100):
        asked = list(range(key, key + 40))
        note(visits, asked, 0, 500)
        note(visits, [key + 50], 0, 3)
        note(visits, [*asked, key + 41], 40, 500)
    loyal = note(visits, list(range(200_000, 200_040)), 0, 500)[1]
    fleeting = note(visits, [200_050], 0, 3)[1]
    assert goes_first(visits, {1: loyal, 2: fleeting}) == 2


def test_a_document_is_kept_and_the_questions_about_it_are_not() -> None:
    visits = Visits(8)
    for question in range(1000, 2000):
        note(visits, [1, 2, 3, question], 3 if question > 1000 else 0, 50)
    trunk, tail = note(visits, [1, 2, 3, 4000], 3, 50)
    assert goes_first(visits, {3: trunk, 4: tail}) == 4
