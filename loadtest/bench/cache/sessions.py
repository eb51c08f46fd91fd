"""How many sessions a node holds."""

import random
import time
from pathlib import Path

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.lower import open_tiers
from trunkline.kernels.core import hash64
from trunkline.loadtest.bench.cache.known import NAMESPACE, Known
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import PAGE_TOKENS

SESSION_TOKENS = 1024
DEVICE_PAGES, HOST_PAGES, DISK_PAGES = 192, 512, 2600


def sessions(folder: Path, page_bytes: int) -> Row:
    """How many sessions of SESSION_TOKENS come before a page of one of them is in no tier: three tiers, device only.

    The cache with its real tiers and pages of the default model's size. Nothing is computed: pages are stamped with
    what they are of, and each one that is reused is compared with it.
    """
    ours = _hold(page_bytes, DiskSettings(folder, DISK_PAGES * (page_bytes + 4096), 1e12))
    alone = _hold(page_bytes, None)
    ratio = ours / alone
    title = f"sessions of {SESSION_TOKENS} tokens before the first recompute"
    return row(title, ours, alone, ratio, ">= 15x device only", ratio >= 15)


def _hold(page_bytes: int, disk: DiskSettings | None) -> int:
    device = np.zeros((DEVICE_PAGES, page_bytes), np.uint8)
    lower = open_tiers(device, HOST_PAGES * page_bytes, disk, NAMESPACE, burst=32) if disk else None
    known = Known()
    cache = PageCache(DEVICE_PAGES, known, lower)
    sessions: list[Chain] = []
    keys: set[int] = set()
    try:
        while keys <= known.keys:
            chance = random.Random(len(sessions))
            sessions.append(Chain(NAMESPACE, [chance.randrange(30_000) for _ in range(SESSION_TOKENS + 1)]))
            keys.update(sessions[-1].keys)
            _turn(cache, device, sessions[-1])
        # The next turns of some, the longest idle one that is whole among them.
        whole = [chain for chain in sessions if known.keys.issuperset(chain.keys)]
        for chain in whole[:: max(1, len(whole) // 6)]:
            if known.keys.issuperset(chain.keys) and _turn(cache, device, Chain(NAMESPACE, chain.tokens)):
                raise RuntimeError("a page that was said to be there was not")
        return len(sessions) - 1
    finally:
        cache.close()


def _turn(cache: PageCache, device: "np.typing.NDArray[np.uint8]", chain: Chain) -> int:
    """A request. How many of its pages had to be computed."""
    pages = cache.match(chain)
    cache.begin(chain)
    for _ in range(4):
        cache.release(pages, used=False)
        if (fetch := cache.fetch(chain)) is not None:
            while cache.awaits(fetch):
                time.sleep(0.0005)
                cache.turn()
        pages = cache.match(chain)
    for index, page in enumerate(pages):
        if device[page, 0:8].tobytes() != _stamp(chain, index):
            raise RuntimeError(f"page {page} is not what it should be")
    missing = len(chain.keys) - len(pages)
    fresh = cache.allocate(missing)
    if fresh is None:
        raise RuntimeError(f"no {missing} pages")
    for index, page in enumerate(fresh, len(pages)):
        device[page, 0:8] = np.frombuffer(_stamp(chain, index), np.uint8)
        pages.append(cache.commit(chain, index, page))
    cache.end(chain, pages, reply_tokens=0)
    cache.turn()
    while cache.moving:
        time.sleep(0.0005)
        cache.turn()
    return missing


def _stamp(chain: Chain, index: int) -> bytes:
    return hash64(chain.tokens[: (index + 1) * PAGE_TOKENS].tobytes()).to_bytes(8, "little")
