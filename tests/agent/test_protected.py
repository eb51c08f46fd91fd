"""What stays while others can go."""

from tests.agent.cache_model import Replay
from tests.agent.test_cache import chain_of, compute
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.protected import WINDOW, Core, Protected


def test_the_core_is_what_nearly_all_have_in_common() -> None:
    core = Core(10)
    for request in range(3 * WINDOW):
        core.request([1, 2, 3, 100 + request] if request % 30 else [7, 8, 9])
    assert core.keys == {1, 2, 3}


def test_half_of_the_requests_make_no_core() -> None:
    core = Core(10)
    for request in range(4 * WINDOW):
        core.request([1, 2, 3] if request % 2 else [7, 8, 9])
    assert core.keys == set()


def test_a_core_that_is_asked_for_no_more_is_none() -> None:
    core = Core(10)
    for _ in range(3 * WINDOW):
        core.request([1, 2])
    assert core.keys == {1, 2}
    for request in range(WINDOW):
        core.request([100 + request])
    assert core.keys == set()


def test_a_core_grows_with_what_is_in_common_and_is_bounded() -> None:
    core = Core(3)
    for _ in range(3 * WINDOW):
        core.request([1, 2])
    for request in range(3 * WINDOW):
        core.request([1, 2, 3, 4, 100 + request])
    assert core.keys == {1, 2, 3}


def test_pages_wait_as_often_as_they_are_waited_for() -> None:
    protected = Protected(8)
    protected.wait([1, 2])
    protected.wait([1])
    protected.waited([1, 2])
    assert 1 in protected
    assert 2 not in protected
    protected.waited([1])
    assert len(protected) == 0


def test_what_is_pinned_goes_only_if_nothing_else_can() -> None:
    sink = Replay()
    cache = PageCache(8, sink)
    pinned, other = chain_of(1, 2), chain_of(3, 4, 5)
    for chain in (pinned, other):
        cache.release(compute(cache, chain))
    cache.pinned.pin(frozenset(pinned.keys))
    assert len(cache.allocate(6) or ()) == 6
    assert list(sink.resident) == pinned.keys
    cache.check()
    assert len(cache.allocate(1) or ()) == 1
    assert list(sink.resident) == pinned.keys[:1]
    cache.pinned.pin(frozenset())
    cache.check()


def test_what_a_waiting_request_has_found_stays_until_it_has_left() -> None:
    sink = Replay()
    cache = PageCache(4, sink)
    cache.release(compute(cache, chain_of(1, 2)))
    waiting = chain_of(1, 2)
    pages = cache.match(waiting)
    cache.begin(waiting)
    cache.release(pages, used=False)
    cache.release(compute(cache, chain_of(3, 4)))
    assert len(cache.allocate(2) or ()) == 2
    assert list(sink.resident) == waiting.keys
    cache.leave(waiting)
    assert cache.counters().protected_pages == 0
