"""What is kept of requests to find hot prefixes."""

import asyncio

from tests.router.fleet import Fleet, text
from trunkline.router.ui import prefixes
from trunkline.router.ui.prefixes import MAX_CHAIN_BYTES, MAX_REQUESTS, WINDOW_S, Hot, Prefixes


def hot(kept: Prefixes) -> Hot:
    return asyncio.run(kept.hot())


def serve(fleet: Fleet, kept: Prefixes, seed: int, size: int = 4000) -> None:
    placement = fleet.scheduler.place(text(seed, size), "", fleet.nodes)
    kept.served(placement.choice(0), placement)


def test_prefixes_of_requests_that_were_served() -> None:
    fleet = Fleet(2)
    fleet.holds(1, text(1))
    kept = Prefixes(lambda: fleet.now)
    for seed in (1, 1, 2, 1):
        serve(fleet, kept, seed)
        fleet.now += 1.0
    found = hot(kept)
    assert (found.requests, found.span_s) == (4, 4.0)
    (one,) = found.prefixes
    assert (one.requests, one.model) == (3, "m")
    assert one.tokens == 1000
    assert one.saved > 2900


def test_old_requests_are_forgotten() -> None:
    fleet = Fleet(1)
    kept = Prefixes(lambda: fleet.now)
    serve(fleet, kept, 1)
    serve(fleet, kept, 1)
    fleet.now += WINDOW_S + 1
    serve(fleet, kept, 2)
    assert hot(kept) == ([], 1, 0.0)
    fleet.now += WINDOW_S + 1
    assert hot(kept) == ([], 0, 0.0)


def test_memory_is_bounded() -> None:
    fleet = Fleet(1)
    kept = Prefixes(lambda: fleet.now)
    for _ in range(MAX_REQUESTS + 10):
        serve(fleet, kept, 1, size=300)
    assert hot(kept).requests == MAX_REQUESTS
    long = Prefixes(lambda: fleet.now)
    placement = fleet.scheduler.place(text(3, 3_000_000), "", fleet.nodes)
    for _ in range(prefixes.MAX_BYTES // MAX_CHAIN_BYTES + 10):
        long.served(placement.choice(0), placement)
    found = hot(long)
    assert found.requests == prefixes.MAX_BYTES // MAX_CHAIN_BYTES
    (one,) = found.prefixes
    assert len(one.chain) == MAX_CHAIN_BYTES
    assert one.tokens < placement.tokens / 5
