from array import array

from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.kernels.core import PrefixIndex
from trunkline.loadtest.sim.events import EventLog, apply
from trunkline.loadtest.sim.host import HostTier
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("test", "", "")
PAGES, HOST_PAGES = 6, 5


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=40))
def test_both_tiers_together_are_what_the_router_hears_of(prompts: list[list[int]]) -> None:
    """Whatever is asked for: no page in both tiers, none without its parent, none unknown to the index."""
    log, index = EventLog(), PrefixIndex()
    host = HostTier(HOST_PAGES, log)
    cache = PageCache(PAGES, host)
    seen: dict[int, int | None] = {}
    for prompt in prompts:
        chain = Chain(NAMESPACE, [token for token in prompt for _ in range(16)] + [0])
        for parent, key in zip([None, *chain.keys], chain.keys, strict=False):
            seen[key] = parent
        pages = cache.match(chain)
        fresh = cache.allocate(len(chain.keys) - len(pages))
        if fresh is not None:
            pages += [cache.commit(chain, at, page) for at, page in enumerate(fresh, start=len(pages))]
        cache.release(pages)
        apply(log.take(), 0, index)
        held = {key for key in seen if host.run([key])}
        device = set(memoryview(index.dump(0)[0]).cast("Q")) - held
        assert len(held) == host.stats().resident <= HOST_PAGES
        assert len(device) == cache.stats().resident
        for key in held | device:
            assert seen[key] is None or seen[key] in held | device
        known = memoryview(index.match(array("Q", chain.keys))).cast("I")
        pages = cache.match(chain)
        cache.release(pages)
        expected = (len(pages), host.run(chain.keys[len(pages) :]))
        assert (known[1] // 16, known[2] // 16) == expected if known else expected == (0, 0)
    cache.check()
