"""What an agent that restarts does before it can use the pages on its disk."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.disk.directory import slot_bytes
from trunkline.agent.cache.disk.index import IndexLog
from trunkline.agent.cache.disk.record import Record
from trunkline.agent.cache.disk.settings import DiskSettings
from trunkline.agent.cache.host import HostMemory
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.agent.cache.lower import DiskBacking, LowerTiers
from trunkline.loadtest.bench.cache.known import NAMESPACE, Known
from trunkline.loadtest.bench.row import Row, row
from trunkline.shared.names import PAGE_TOKENS

PAGES = 100_000
PAGE_BYTES = 4096
"""Small: none is read."""
SESSION_PAGES = 500
BATCH = 50
"""Pages that were written at once."""


def restart(folder: Path, rounds: int) -> Row:
    """CPU time from opening the directory to a verified match of a session, and no page of any session is missing."""
    chance = random.Random(1)
    tokens = SESSION_PAGES * PAGE_TOKENS + 1
    sessions = [
        Chain(NAMESPACE, [chance.randrange(30_000) for _ in range(tokens)]) for _ in range(PAGES // SESSION_PAGES)
    ]
    folder.mkdir()
    _open(folder)[1].store.close()
    index, _ = IndexLog.open(folder, PAGES)
    records = list(_records(sessions, chance))
    for start in range(0, PAGES, BATCH):
        index.append([], records[start : start + BATCH])
    index.close()
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        lower, _ = _open(folder)
        cache = PageCache(1, Known(), lower)
        _found(cache, sessions[-1])
        seconds.append(time.process_time() - began)
        for session in sessions:
            _found(cache, session)
        cache.close()
    value = 1000 * median(seconds)
    return row(f"restart, {PAGES} pages, ms of CPU", value, None, None, "<= 500", value <= 500)


def _records(sessions: list[Chain], chance: random.Random) -> Iterator[Record]:
    """Each page with two text keys, of which one hangs on the page before as well: as an engine attaches them."""
    slot = 0
    for session in sessions:
        texts = [(chance.getrandbits(64), PAGE_TOKENS * (index + 1)) for index in range(SESSION_PAGES)]
        for index, key in enumerate(session.keys):
            parent, generation = (slot - 1, slot) if index else (NO_PARENT, 0)
            namespace = None if index else session.namespace
            tokens, keys = session.page(index), tuple(texts[max(0, index - 1) : index + 1])
            yield Record(slot, slot + 1, parent, generation, key, PAGE_TOKENS * (index + 1), tokens, namespace, keys)
            slot += 1


def _open(folder: Path) -> tuple[LowerTiers, DiskBacking]:
    disk = DiskSettings(folder, PAGES * slot_bytes(PAGE_BYTES), 1e12)
    host = HostMemory(np.zeros((1, PAGE_BYTES), np.uint8), PAGE_BYTES)
    backing = DiskBacking(disk, NAMESPACE, host)
    return LowerTiers(host, 1, disk=backing), backing


def _found(cache: PageCache, session: Chain) -> None:
    chain = Chain(session.namespace, session.tokens)
    cache.match(chain)
    if len(chain.below) != SESSION_PAGES:
        raise RuntimeError(f"{len(chain.below)} of {SESSION_PAGES} pages were found")
