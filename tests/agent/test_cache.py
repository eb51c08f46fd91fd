"""The page cache, rule by rule. `test_cache_model.py` drives it at random."""

import logging

import pytest

from tests.agent.cache_model import Replay
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.shared.names import MAX_TEXT_KEYS_PER_PAGE, PAGE_TOKENS
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import TierLoad

NAMESPACE = Namespace("model", "float32", "layout")


@pytest.fixture
def sink() -> Replay:
    return Replay()


@pytest.fixture
def cache(sink: Replay) -> PageCache:
    return PageCache(8, sink)


def chain_of(*blocks: int, tail: int = 1, namespace: Namespace = NAMESPACE) -> Chain:
    """A whole page of each number, then `tail` tokens."""
    return Chain(namespace, [block for block in blocks for _ in range(PAGE_TOKENS)] + [99] * tail)


def compute(cache: PageCache, chain: Chain) -> list[int]:
    """Matches, takes and commits all full pages of a chain, as an engine does; its pages, held."""
    pages = cache.match(chain)
    fresh = cache.allocate(len(chain.keys) - len(pages))
    assert fresh is not None
    for index, page in enumerate(fresh, len(pages)):
        pages.append(cache.commit(chain, index, page))
    return pages


def pack(*texts: tuple[int, int]) -> tuple[bytes, bytes]:
    keys = b"".join(key.to_bytes(8, "little") for key, _ in texts)
    return keys, b"".join(depth.to_bytes(4, "little") for _, depth in texts)


def test_what_was_committed_is_matched_and_shared(cache: PageCache) -> None:
    first = compute(cache, chain_of(1, 2, 3))
    second = cache.match(chain_of(1, 2, 4))
    assert second == first[:2]
    assert [cache.pool.references(page) for page in first] == [3, 3, 2]
    cache.release(first)
    assert cache.stats().cached == 1
    cache.release(second)
    assert cache.stats() == TierLoad(0, 8, 5, 3, 0, 3, longest_free=5)
    cache.check()


@pytest.mark.parametrize(("tail", "matched"), [(0, 1), (1, 2)])
def test_one_token_is_always_left_to_compute(cache: PageCache, tail: int, matched: int) -> None:
    compute(cache, chain_of(1, 2))
    assert len(cache.match(chain_of(1, 2, tail=tail))) == matched
    assert cache.match(chain_of(tail=0)) == []


def test_generated_pages_are_committed_too(cache: PageCache) -> None:
    chain = chain_of(1, tail=15)
    pages = compute(cache, chain)
    chain.append(7)
    fresh = cache.allocate(1)
    assert fresh is not None
    pages.append(cache.commit(chain, 1, fresh[0]))
    again = Chain(NAMESPACE, [*chain.tokens, 5])
    assert cache.match(again) == pages


def test_an_equal_page_committed_meanwhile_is_used(cache: PageCache, sink: Replay) -> None:
    one, other = chain_of(1, 2), chain_of(1, 2)
    mine, theirs = cache.allocate(2), cache.allocate(2)
    assert mine is not None
    assert theirs is not None
    assert [cache.commit(one, index, page) for index, page in enumerate(mine)] == mine
    assert [cache.commit(other, index, page) for index, page in enumerate(theirs)] == mine
    assert cache.commit(other, 1, mine[1]) == mine[1]
    assert [cache.pool.references(page) for page in (*mine, *theirs)] == [3, 3, 0, 0]
    assert sink.events == [("stored", [key]) for key in one.keys]
    cache.check()


def test_committing_a_page_again_changes_nothing(cache: PageCache) -> None:
    chain = chain_of(1, 2, 3, 4)
    pages = cache.allocate(4)
    assert pages is not None
    for index in (0, 0, 1, 2, 1, 2, 3):
        assert cache.commit(chain, index, pages[index]) == pages[index]
    cache.release(pages)
    assert cache.stats() == TierLoad(0, 8, 4, 4, 0, 4, longest_free=4)
    assert cache.match(chain_of(1, 2, 3, 4)) == pages
    cache.check()


def test_namespaces_share_nothing(cache: PageCache) -> None:
    compute(cache, chain_of(1, 2))
    assert cache.match(chain_of(1, 2, namespace=NAMESPACE.salted("aa"))) == []
    assert cache.false_hits == 0


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(chain_of(5, 2), id="other tokens in the first page"),
        pytest.param(chain_of(1, 5), id="other tokens in a later page"),
        pytest.param(chain_of(1, 2, namespace=NAMESPACE.salted("aa")), id="other namespace"),
    ],
)
def test_equal_keys_are_not_enough(cache: PageCache, forged: Chain, caplog: pytest.LogCaptureFixture) -> None:
    truth = chain_of(1, 2)
    pages = compute(cache, truth)
    forged.keys = list(truth.keys)
    equal = 0 if forged.page(0) != truth.page(0) or forged.namespace != truth.namespace else 1
    with caplog.at_level(logging.WARNING):
        assert cache.match(forged) == pages[:equal]
    assert cache.false_hits == 1
    assert "false hit" in caplog.text
    # What it computes instead stays its own, also where no key is in the way; the truth stays as it is.
    fresh = cache.allocate(2)
    assert fresh is not None
    assert [cache.commit(forged, index, fresh[index]) for index in range(equal, 2)] == fresh[equal:]
    cache.release(fresh)
    assert cache.stats().free == 6
    assert cache.match(chain_of(1, 2)) == pages
    cache.check()


def test_equal_tokens_after_another_parent_are_not_enough(cache: PageCache) -> None:
    pages = compute(cache, chain_of(1, 2))
    assert not set(compute(cache, chain_of(3, 2))) & set(pages)
    # Both second pages have the same tokens; the key of the one is forged into the chain of the other.
    forged = chain_of(3, 2)
    forged.keys[1] = chain_of(1, 2).keys[1]
    assert len(cache.match(forged)) == 1
    assert cache.false_hits == 1


def test_the_least_recently_used_leaf_goes_first(cache: PageCache, sink: Replay) -> None:
    old, new = chain_of(1, 2, 3), chain_of(1, 4)
    held = [compute(cache, old), compute(cache, new)]
    for pages in held:
        cache.release(pages)
    sink.events.clear()
    assert len(cache.allocate(5) or ()) == 5
    assert sink.events == [("removed", [old.keys[2]])]
    assert len(cache.allocate(2) or ()) == 2
    assert sink.events[1:] == [("removed", [old.keys[1], new.keys[1]])]
    assert sink.resident == {old.keys[0]: 16}


def test_a_use_makes_a_page_younger(cache: PageCache, sink: Replay) -> None:
    old, new = chain_of(1), chain_of(2)
    for chain in (old, new):
        cache.release(compute(cache, chain))
    cache.release(cache.match(old))
    assert len(cache.allocate(7) or ()) == 7
    assert list(sink.resident) == old.keys


def test_of_a_loop_that_does_not_fit_a_part_is_kept(sink: Replay) -> None:
    # Least recently used first would find nothing, ever.
    cache = PageCache(20, sink)
    found = 0
    for request in range(900):
        chain = chain_of(request % 15, request % 15)
        pages = cache.match(chain)
        cache.begin(chain)
        cache.release(pages, used=False)
        cache.end(chain, compute(cache, chain), reply_tokens=5)
        found += len(pages) if request >= 600 else 0
    assert found > 100
    cache.check()


def test_allocation_that_cannot_be_had_evicts_nothing(cache: PageCache, sink: Replay) -> None:
    cache.release(compute(cache, chain_of(1, 2)))
    held = compute(cache, chain_of(1, 3))
    assert cache.allocate(7) is None
    assert len(sink.resident) == 3
    # A parent that nobody holds cannot go before its child, which somebody holds.
    cache.release(held[:1])
    assert cache.stats().cached == 2
    assert cache.allocate(7) is None
    assert len(sink.resident) == 3
    cache.check()
    assert len(cache.allocate(6) or ()) == 6
    cache.release(held[1:])
    assert len(cache.allocate(2) or ()) == 2
    assert sink.resident == {}
    cache.check()


def test_evicted_pages_wait_for_running_steps_and_are_counted_once(cache: PageCache, sink: Replay) -> None:
    cache.release(compute(cache, chain_of(1, 2, 3, 4)))
    ticket = cache.pool.step_begin()
    assert cache.allocate(6) is None
    assert cache.allocate(6) is None
    assert cache.stats() == TierLoad(0, 8, 4, 2, 2, 2, longest_free=4)
    assert len(sink.resident) == 2
    cache.pool.step_end(ticket)
    assert len(cache.allocate(6) or ()) == 6


def test_a_chain_whose_pages_are_gone_commits_nothing_more(cache: PageCache, sink: Replay) -> None:
    chain = chain_of(1, 2)
    page = cache.allocate(1)
    assert page is not None
    cache.release([cache.commit(chain, 0, page[0])])
    pages = cache.allocate(8)
    assert pages is not None
    assert cache.commit(chain, 1, pages[0]) == pages[0]
    assert sink.resident == {}
    cache.release(pages)
    assert cache.stats().free == 8


def test_clearing_leaves_held_pages_to_their_holders(cache: PageCache, sink: Replay) -> None:
    chain = chain_of(1, 2, 3)
    cache.attach_text(chain, *pack((1, 16)))
    pages = compute(cache, chain)
    cache.release(compute(cache, chain_of(4)))
    cache.clear()
    assert sink.events[-1] == ("cleared", [])
    assert cache.stats() == TierLoad(0, 8, 5, 3, 0, 0, longest_free=5)
    assert cache.commit(chain, 2, pages[2]) == pages[2]
    assert cache.match(chain_of(1)) == []
    assert sink.resident == {}
    cache.release(pages)
    assert cache.stats().free == 8
    cache.check()


def test_text_keys_live_with_the_page_that_ends_at_their_depth(cache: PageCache, sink: Replay) -> None:
    chain = chain_of(1, 2, 3)
    # Before the pages are there. 7 settles less than a page, 9 not more than 8, and 10 and 11 end within one.
    cache.attach_text(chain, *pack((7, 9), (8, 16), (9, 31), (10, 40), (11, 49)))
    assert sink.resident == {}
    pages = compute(cache, chain)
    one, two, three = chain.keys
    assert sink.resident == {one: 16, 7: 0, 8: 16, 9: 16, two: 32, 10: 32, three: 48, 11: 48}
    cache.release(pages)
    sink.events.clear()
    assert len(cache.allocate(8) or ()) == 8
    assert sink.events == [("removed", [11, three, 10, 9, two, 8, 7, one])]


def test_text_keys_of_resident_pages_are_published_at_once(cache: PageCache, sink: Replay) -> None:
    compute(cache, chain_of(1, 2))
    chain = chain_of(1, 2, 3)
    cache.match(chain)
    sink.events.clear()
    cache.attach_text(chain, *pack((7, 16), (8, 32), (9, 48)))
    assert sink.events == [("stored", [7, 8])]


def test_text_keys_are_published_again_with_pages_that_came_back(cache: PageCache, sink: Replay) -> None:
    waiting = chain_of(1, 2)
    cache.release(compute(cache, chain_of(1, 2)))
    pages = cache.match(waiting)
    cache.attach_text(waiting, *pack((7, 16), (8, 32)))
    cache.release(pages)
    cache.release(cache.allocate(8) or [])
    cache.attach_text(waiting, *pack((9, 16)))
    assert sink.resident == {}
    compute(cache, chain_of(1, 2))
    assert sink.resident.keys() == set(waiting.keys)
    cache.match(waiting)
    assert sink.resident.keys() == {*waiting.keys, 7, 8, 9}


def test_a_text_key_on_two_pages_goes_with_the_last(cache: PageCache, sink: Replay) -> None:
    short, long = chain_of(1), chain_of(1, 2)
    cache.attach_text(short, *pack((7, 16)))
    cache.attach_text(long, *pack((7, 32)))
    cache.attach_text(long, *pack((7, 32)))
    cache.release(compute(cache, long))
    assert sink.resident[7] == 32
    cache.release(compute(cache, short))
    assert sink.resident[7] == 32
    assert len(cache.allocate(7) or ()) == 7
    assert sink.resident == {short.keys[0]: 16, 7: 16}
    cache.check()
    assert len(cache.allocate(1) or ()) == 1
    assert sink.resident == {}
    cache.check()


def test_text_keys_per_page_are_bounded_and_the_oldest_go(cache: PageCache, sink: Replay) -> None:
    chain = chain_of(1)
    compute(cache, chain)
    for key in range(100, 100 + MAX_TEXT_KEYS_PER_PAGE):
        cache.attach_text(chain, *pack((key, 16)))
    cache.attach_text(chain, *pack((100, 16)))  # attached again: not the oldest any more
    cache.attach_text(chain, *pack((1, 0), (2, 16)))
    assert sink.resident.keys() == {chain.keys[0], 100, *range(103, 100 + MAX_TEXT_KEYS_PER_PAGE), 1, 2}
    # Of more at once the first stay: parents, without which the others would not be found.
    cache.attach_text(chain, *pack(*((key, 0) for key in range(200, 220))))
    assert sink.resident.keys() == {chain.keys[0], *range(200, 200 + MAX_TEXT_KEYS_PER_PAGE)}
    cache.check()


@pytest.mark.parametrize("preamble", [16, 32])
def test_text_keys_of_many_conversations_on_one_page_stay_connected(sink: Replay, preamble: int) -> None:
    # All share two pages and each has a third. The question of each ends on the second page, with the preamble
    # (32 tokens settled) or after it (16), and the answers beyond would not be found without it.
    cache = PageCache(40, sink)
    questions = range(100, 100 + 3 * MAX_TEXT_KEYS_PER_PAGE)
    for key in questions:
        chain = chain_of(1, 2, key)
        cache.attach_text(chain, *pack((7, preamble), (key, 32), (key + 1000, 48)))
        cache.release(compute(cache, chain))
    for key in questions:
        assert sink.resident[key] == 32
        assert sink.resident[key + 1000] == 48
    assert sink.resident[7] == preamble
    cache.check()


def test_misuse_is_refused_and_changes_nothing(cache: PageCache) -> None:
    chain = chain_of(1, 2)
    pages = compute(cache, chain)
    private = cache.allocate(1)
    assert private is not None
    before = cache.stats()
    with pytest.raises(ValueError, match="page 2 of a sequence with 2 full pages"):
        cache.commit(chain, 2, private[0])
    with pytest.raises(ValueError, match=f"page {pages[0]} is not private"):
        cache.commit(chain_of(3), 0, pages[0])
    with pytest.raises(ValueError, match="page 7 is not private"):
        cache.commit(chain_of(3), 0, 7)
    for released in ([*private, *pages, pages[0]], [8], [-1], [*private, 7]):
        with pytest.raises(ValueError, match=r"page -?\d is"):
            cache.release(released)
    with pytest.raises(ValueError, match="allocate -1"):
        cache.allocate(-1)
    for keys, depths in ((b"7" * 8, b""), (b"7" * 7, b"7" * 4), (b"", b"7777"), (b"7" * 8, b"777")):
        with pytest.raises(ValueError, match="bytes of text keys"):
            cache.attach_text(chain, keys, depths)
    with pytest.raises(ValueError, match="a pool has 1 to"):
        PageCache(0, Replay())
    assert cache.stats() == before
    cache.check()


def test_check_names_what_does_not_add_up(cache: PageCache) -> None:
    compute(cache, chain_of(1, 2))
    cache.pool.share([0])
    cache.pool.release([0, 0])
    with pytest.raises(RuntimeError, match="1 device pages are idle, 0 are counted"):
        cache.check()
