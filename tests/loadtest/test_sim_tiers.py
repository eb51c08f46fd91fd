"""A modelled node's cache: real tiers, and lanes on a clock that is given."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.kernels.core import PrefixIndex
from trunkline.loadtest.sim.events import EventLog, apply
from trunkline.loadtest.sim.tiers import open_cache
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("test", "", "")
PAGES, HOST_PAGES = 6, 5


def serve(cache: PageCache, prompt: list[int]) -> Chain:
    chain = Chain(NAMESPACE, [token for token in prompt for _ in range(16)] + [0])
    pages = cache.match(chain)
    cache.begin(chain)
    fresh = cache.allocate(len(chain.keys) - len(pages))
    if fresh is not None:
        pages += [cache.commit(chain, at, page) for at, page in enumerate(fresh, start=len(pages))]
    cache.end(chain, pages, 1)
    return chain


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(0.0, 3.0)), max_size=40),
    st.floats(0.0, 1.0),
)
def test_the_router_hears_of_what_is_in_each_tier(prompts: list[tuple[list[int], float]], page_s: float) -> None:
    """Whatever is asked for, and however long pages take to get below."""
    log, index = EventLog(), PrefixIndex()
    now = 0.0
    cache = open_cache(PAGES, HOST_PAGES, log, page_s, lambda: now)
    for prompt, pause in prompts:
        now += pause
        cache.turn()
        chain = serve(cache, prompt)
        apply(log.take(), 0, index)
        pages = cache.match(chain)
        cache.release(pages, used=False)
        known = memoryview(index.match(array("Q", chain.keys))).cast("I")
        expected = (len(pages), len(chain.below))
        assert (known[1] // 16, known[2] // 16) == expected if known else expected == (0, 0)
        device, host = cache.tiers()
        assert device.resident <= PAGES
        assert host.resident <= HOST_PAGES
        cache.check()


def test_pages_take_their_time_to_the_host_tier_and_are_there_once_the_device_has_let_them_go() -> None:
    now = 0.0
    cache = open_cache(10, 100, EventLog(), 1.0, lambda: now)
    first = serve(cache, list(range(10)))
    cache.turn()
    assert cache.tiers()[1].cached == 0
    for _ in range(10):
        now += 1.0
        cache.turn()
    device, host = cache.tiers()
    assert (device.free, host.cached) == (1, 10)  # room for one is kept, and what goes there hangs on all the others
    serve(cache, list(range(10, 19)))
    assert (len(cache.match(first)), len(first.below)) == (1, 9)


def test_a_node_may_have_no_host_tier() -> None:
    cache = open_cache(4, 0, EventLog(), 1.0, lambda: 0.0)
    serve(cache, [1, 2, 3])
    assert len(cache.tiers()) == 1
