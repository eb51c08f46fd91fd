"""The pages of one engine: found again by prefix, verified, kept until somebody else needs the room.

Life of a page: *private* to a sequence (`allocate`), resident under its key once full (`commit`), shared with whoever
has the same prefix (`match`), idle when the last of them has let go (`release`), evicted when room is needed. The
cache itself holds one reference to each resident page.

Other tiers come behind this same interface; what is here is the device tier.
"""

import logging
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.eviction import EvictionOrder
from trunkline.agent.cache.publisher import Publisher
from trunkline.agent.cache.sink import SummarySink
from trunkline.agent.cache.texts import TextKeys
from trunkline.kernels.core import PagePool
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.wire import TierLoad

log = logging.getLogger(__name__)


class PageCache:
    """Prefix map over a page pool. Used from the engine thread only; nothing here waits or locks, and the sink is
    called from that thread too.

    The set of resident keys is prefix-closed at all times, and so is what has been published.
    `pool` is for the engine's `step_begin` and `step_end`; pages are taken and given back through the cache.
    """

    def __init__(self, pages: int, sink: SummarySink) -> None:
        """Raises ValueError for a number of pages that no pool can have."""
        self.pool = PagePool(pages)
        self.false_hits = 0
        """Matches that ended because a key was there, but not for these tokens after this parent."""
        self._resident: list[Entry | None] = [None] * pages
        self._by_key: dict[int, Entry] = {}
        self._idle = 0
        self._releases = 0
        self._eviction = EvictionOrder(self._resident, self.pool)
        self._publisher = Publisher(sink, Tier.DEVICE)
        self._texts = TextKeys(self._publisher)

    def match(self, request: Chain) -> list[int]:
        """Pages of the longest verified prefix, a reference taken on each.

        At least one token is left to compute, since the next one follows from its logits: a request of n tokens gets
        at most (n - 1) // 16 pages.
        """
        entries: list[Entry] = []
        parent: Entry | None = None
        usable = max(0, len(request.tokens) - 1) // PAGE_TOKENS
        find, namespace = self._by_key.get, request.namespace
        for key, tokens in zip(islice(request.keys, usable), request.pages(), strict=False):
            entry = find(key)
            if entry is None:
                break
            if not entry.continues(parent, namespace, tokens):
                self.false_hits += 1
                log.warning(
                    "false hit: key %016x is of other tokens, after another parent or of another namespace", key
                )
                break
            entries.append(entry)
            parent = entry
        pages = [entry.page for entry in entries]
        self._share(pages)
        self._follow(request, entries)
        return pages

    def allocate(self, count: int) -> list[int] | None:
        """Private pages, one reference each; evicts what is missing, leaf first, least recently used first.

        None: cannot, and nothing was evicted that need not be. While steps run, evicted pages wait for them; then
        None says to come again after the step, and what waits is not evicted a second time.
        """
        missing = count - self.pool.free - self.pool.in_flight
        if missing > 0 and not self._evict(missing):
            return None
        return self.pool.allocate(count)

    def commit(self, chain: Chain, index: int, page: int) -> int:
        """Page `index` of the chain is full, and `page`, private so far, holds it. Returns the page to use from now on.

        That is `page`, or an equal one that was committed meanwhile; then `page` is released and the other one
        referenced. A page whose parent is not resident for this chain, or whose key stands for other tokens, stays
        private. Raises ValueError for an index that is not full and a page that is not held or not private.
        """
        if not 0 <= index < len(chain.keys):
            raise ValueError(f"page {index} of a sequence with {len(chain.keys)} full pages cannot be committed")
        if index > len(chain.entries):
            return page
        parent = chain.entries[index - 1] if index else None
        if parent is not None and parent.page == GONE:
            return page
        key, tokens = chain.keys[index], chain.page(index)
        entry = self._by_key.get(key)
        if entry is None:
            entry = self._store(key, parent, chain, tokens, page)
        elif not entry.continues(parent, chain.namespace, tokens):
            return page
        else:
            self.release([page])
            self._share([entry.page])
        chain.entries[index:] = [entry]
        if texts := chain.texts.get(index):
            self._texts.attach(entry, texts)
        self._publisher.flush()
        return entry.page

    def release(self, pages: Iterable[int]) -> None:
        """One reference less to each. Committed pages stay, evictable once nobody holds them; private ones are freed.

        Raises ValueError, and changes nothing, for a page that the caller cannot be holding.
        """
        holds = Counter(pages)
        idle = []
        for page, count in holds.items():
            left = self.pool.references(page) - count
            entry = self._resident[page]
            own = 0 if entry is None else 1  # the cache's reference is not the caller's to release
            if left < own:
                raise ValueError(f"page {page} is released more often than it is held")
            if entry is not None and left == own:
                idle.append(entry)
        self.pool.release(list(holds.elements()))
        self._idle += len(idle)
        self._releases += 1
        for entry in idle:
            entry.used = self._releases
            self._eviction.add(entry)

    def attach_text(self, chain: Chain, keys: bytes, depths: bytes) -> None:
        """Text keys of this chain, parents first (packed u64), and how many tokens each settles (packed u32, rounded
        down to whole pages here).

        A key is published while the page that ends at its depth is resident for this chain, now or later. It hangs
        on the page after that one too, where its children begin: a page that many conversations share, such as the
        end of a system prompt, has no room for the next key of each. A key that settles no page more than its parent
        is only of use to its children, so it hangs on the page after alone.
        Raises ValueError for buffers of different lengths.
        """
        try:
            packed = zip(struct.iter_unpack("<Q", keys), struct.iter_unpack("<I", depths), strict=True)
            texts = [(key, depth // PAGE_TOKENS) for (key,), (depth,) in packed]
        except (struct.error, ValueError):
            raise ValueError(f"{len(keys)} bytes of text keys with {len(depths)} bytes of depths") from None
        fresh: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        settled = 0
        for key, pages in texts:
            if pages > settled:
                fresh[pages - 1].append((key, pages * PAGE_TOKENS))
            fresh[pages].append((key, pages * PAGE_TOKENS))
            settled = pages
        for index, some in fresh.items():
            chain.texts.setdefault(index, []).extend(some)
            if index < len(chain.entries) and chain.entries[index].page != GONE:
                self._texts.attach(chain.entries[index], some)
        self._publisher.flush()

    def clear(self) -> None:
        """Forgets everything. Pages that sequences hold become theirs alone."""
        pages = [entry.page for entry in self._by_key.values()]
        for entry in self._by_key.values():
            self._resident[entry.page] = None
            entry.page = GONE
        self._by_key.clear()
        self._eviction.clear()
        self._texts.clear()
        self._idle = 0
        self.pool.release(pages)
        self._publisher.cleared()

    def stats(self) -> TierLoad:
        """The device tier's pages, as of now."""
        pool = self.pool
        return TierLoad(Tier.DEVICE, pool.total, pool.free, pool.resident, pool.in_flight, cached=self._idle)

    def check(self) -> None:
        """Counts everything anew. Raises RuntimeError with the first thing that does not add up."""
        self.pool.check()
        children: Counter[int] = Counter()
        for key, entry in self._by_key.items():
            if entry.key != key or self._resident[entry.page] is not entry:
                raise RuntimeError(f"key {key:016x} leads to page {entry.page}, which has another")
            if entry.parent is not None:
                children[entry.parent.page] += 1
                if self._by_key.get(entry.parent.key) is not entry.parent:
                    raise RuntimeError(f"page {entry.page} is resident without its parent")
        entries = [entry for entry in self._resident if entry is not None]
        if len(entries) != len(self._by_key):
            raise RuntimeError(f"{len(entries)} pages have an entry, {len(self._by_key)} keys do")
        for entry in entries:
            if entry.children != children[entry.page]:
                raise RuntimeError(f"page {entry.page} has {children[entry.page]} children, counts {entry.children}")
        idle = sum(self.pool.references(entry.page) == 1 for entry in entries)
        if idle != self._idle:
            raise RuntimeError(f"{idle} pages are idle, {self._idle} are counted")
        self._eviction.check()
        self._texts.check(entries)
        published = 0
        for key in (*self._by_key, *self._texts.published()):
            published ^= key
        count = len(self._by_key) + sum(1 for _ in self._texts.published())
        if (count, published) != (self._publisher.count, self._publisher.xor):
            raise RuntimeError(f"{count} keys are resident, {self._publisher.count} published, or they differ")

    def _store(self, key: int, parent: Entry | None, chain: Chain, tokens: bytes, page: int) -> Entry:
        if self.pool.references(page) == 0 or self._resident[page] is not None:
            raise ValueError(f"page {page} is not private to a sequence and cannot be committed")
        self.pool.share([page])
        depth = PAGE_TOKENS if parent is None else parent.depth + PAGE_TOKENS
        entry = Entry(key, parent, chain.namespace if parent is None else None, tokens, page, depth)
        if parent is not None:
            parent.children += 1
        self._by_key[key] = self._resident[page] = entry
        self._publisher.stored(key, depth)
        return entry

    def _share(self, pages: list[int]) -> None:
        """One more holder of resident pages."""
        references = self.pool.references
        self._idle -= sum(references(page) == 1 for page in pages)
        self.pool.share(pages)

    def _follow(self, chain: Chain, entries: list[Entry]) -> None:
        """The chain's verified pages are now `entries`: its text keys hang on those that it did not have before."""
        before, chain.entries = chain.entries, entries
        for index, texts in chain.texts.items():
            if index < len(entries) and (index >= len(before) or before[index] is not entries[index]):
                self._texts.attach(entries[index], texts)
        self._publisher.flush()

    def _evict(self, count: int) -> bool:
        """Lets `count` idle pages go, or none at all."""
        entries = self._eviction.take(count) if count <= self._idle else None
        if entries is None:
            return False
        self.pool.release([entry.page for entry in entries])
        for entry in entries:
            entry.page = GONE
            del self._by_key[entry.key]
            self._texts.detach(entry)
            self._publisher.removed(entry.key)
        self._idle -= count
        self._publisher.flush()
        return True
