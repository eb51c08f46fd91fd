"""The pages of one engine: found again by prefix, verified, kept until somebody else needs the room.

Life of a page: *private* to a sequence (`allocate`), resident under its key once full (`commit`), shared with whoever
has the same prefix (`match`), idle when the last of them has let go (`release`), evicted when room is needed. The
cache itself holds one reference to each resident page.

With tiers below the device, idle pages are copied there before their room is needed, and `fetch` brings them back:
see `migration.py`. What a sequence computes on is always on the device.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.committing import Committing
from trunkline.agent.cache.counters import TierCounters, TierRates
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.host import PageMemory
from trunkline.agent.cache.level import DeviceLevel, Level
from trunkline.agent.cache.lower import LowerTiers
from trunkline.agent.cache.matching import Matching
from trunkline.agent.cache.migration import Migration
from trunkline.agent.cache.ordered import Ordered
from trunkline.agent.cache.peers import Peers
from trunkline.agent.cache.pinned import Pinned
from trunkline.agent.cache.preload import Preload, PreloadSettings
from trunkline.agent.cache.sink import SummarySink
from trunkline.agent.cache.texts import by_page
from trunkline.agent.cache.usage import Usage
from trunkline.agent.cache.visits import Visits
from trunkline.agent.cache.warm import Warm
from trunkline.agent.cache.window import Window
from trunkline.kernels.core import PagePool
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.wire import TierLoad


class PageCache:
    """Prefix map over the pages of all tiers. Used by one thread at a time: the engine, or its keeper;
    nothing here waits or locks, and the sink is called from that thread too.

    The set of resident keys is prefix-closed at all times, in each tier and over all, and so is what has been
    published. `pool` is for the engine's `step_begin` and `step_end`; pages are taken and given back through the cache.
    """

    def __init__(
        self,
        pages: int,
        sink: SummarySink,
        lower: LowerTiers | None = None,
        preload: PreloadSettings = PreloadSettings(),  # noqa: B008  # it is frozen
        window: Window | None = None,
    ) -> None:
        """`lower`: the tiers below the device. `preload`: what to bring back before it is asked for.
        `window`: of a model that attends to no more than that.

        Raises ValueError for a number of pages that no pool can have.
        """
        self.window = window
        self._visits = Visits(pages)
        self._device = DeviceLevel(pages, self._visits, closed=window is None)
        self.pool: PagePool = self._device.pool
        self.prefill_rate = 0.0
        """Tokens per second that the engine computes, as it says; 0: not known yet."""
        self._catalog = Catalog(sink)
        self._migration = Migration(self._catalog, self._device, lower, self._visits) if lower else None
        self.warm = Warm(self._catalog, self._device)
        self._preload = Preload(preload, self.find, self._bring, lower.clock) if lower else None
        self._matching = Matching(self._catalog)
        self._committing = Committing(self._catalog, self._device)
        self._usage = Usage(self._visits, self._device, self._migration)
        self.ordered = Ordered(self._matching, self._usage, self._device, self._migration)
        self.pinned = Pinned(self._catalog, self._visits.protected)

    def match(self, request: Chain) -> list[int]:
        """Pages of the longest verified prefix on the device, a reference taken on each.

        At least one token is left to compute, since the next one follows from its logits: a request of n tokens gets
        at most (n - 1) // 16 pages. What follows in lower tiers, verified likewise, is noted for `fetch`.
        With a window, only those are returned that are still attended to, after a GONE for each one before them.
        """
        entries = self._matching.prefix(request, max(0, len(request.tokens) - 1) // PAGE_TOKENS)
        if self.window is None:
            pages = [entry.page for entry in entries if entry.page != GONE]
            passed, reach, request.below = 0, len(pages), entries[len(pages) :]
        else:
            passed, reach, request.below = self.window.usable(entries)
            pages = [entry.page for entry in entries[passed:reach]]
        self._device.hold(pages)
        self._matching.follow(request, entries[:reach])
        return [GONE] * passed + pages

    def fetch(self, chain: Chain) -> Fetch | None:
        """Begins to bring back what `match` found below the device, and what the chain's holder has beyond that, as far
        as that is quicker than computing it.

        None: nothing is to be brought back. Else see `awaits`.
        """
        if self._migration is None or not (chain.below or chain.holder):
            return None
        return self._migration.fetching.fetch(chain, self.prefill_rate)

    def awaits(self, fetch: Fetch) -> bool:
        """Whether to wait for it: the pages are needed on the device now, and some are still on their way in time.
        When it says no, `match` finds what came."""
        return self._migration is not None and self._migration.fetching.awaits(fetch)

    @property
    def readable(self) -> tuple[Level[Any], ...]:
        """The tiers that others can read in place: the host if there is one, then the device, unless pages are kept
        otherwise in the host."""
        return self._migration.readable if self._migration else (self._device,)

    def find(self, key: int) -> Entry | None:
        """The page under a key, in whatever tier. Nothing is verified."""
        return self._catalog.entries.get(key)

    def to_host(self, entries: Sequence[Entry]) -> None:
        """Begins to bring a run of one chain to the host, as far as there is room: copies of what is on the device, and
        what is on the disk alone."""
        if self._migration is not None:
            self._migration.to_host(entries)

    def abandon(self, fetch: Fetch) -> None:
        """Nobody waits for it any more."""
        if self._migration is not None:
            self._migration.fetching.abandon(fetch)

    def lendable(self) -> PageMemory | None:
        """Where pages lie that others may read. None: without tiers below the device, none does."""
        return self._migration.lendable() if self._migration else None

    def read_from(self, peers: Peers) -> None:
        """Other nodes that can be asked for pages, from now on. Without tiers below the device, they are not."""
        if self._migration is not None:
            self._migration.pulls.peers = peers

    def turn(self, *, computing: bool = False) -> None:
        """Now and then, also during a step: takes over what was moved, and moves what should be. Never waits.
        `computing`: whether the engine does, or did since the turn before, and has to share its cores with who copies.
        """
        if self._migration is not None:
            self._migration.turn(self.prefill_rate, computing=computing)
        if self._preload is not None:
            self._preload.turn()
        self._catalog.flush()

    def on_landed(self, wake: Callable[[], None]) -> None:
        """`wake` is called from other threads when there is something for `turn`; it must not wait."""
        if self._migration is not None:
            self._migration.on_landed(wake)

    def keep(self, seconds: float) -> None:
        """Writes to the disk, if there is one, what only memory has, for so long at most. Nothing is asked for any
        more; what comes next is `close`."""
        if self._migration is not None:
            self._migration.keep(seconds)
            self._catalog.flush()

    def close(self) -> bool:
        """Ends what moves pages between tiers. False: something is still at it."""
        return self._migration is None or self._migration.close()

    @property
    def moving(self) -> bool:
        """Whether pages are on their way between tiers."""
        return self._migration is not None and self._migration.moving

    def allocate(self, count: int) -> list[int] | None:
        """Private pages, one reference each; evicts what is missing, leaf first, what is worth least first.

        None: cannot, and nothing was evicted that need not be. While steps run, evicted pages wait for them; then
        None says to come again after the step, and what waits is not evicted a second time.
        """
        missing = count - self.pool.free - self.pool.in_flight
        if missing > 0:
            if self._migration is not None:
                self._migration.save(missing)
            if not self._catalog.evict(self._device, missing):
                return None
        self._catalog.flush()  # what is there no more is said before its pages are anybody else's
        return self.pool.allocate(count)

    def commit(self, chain: Chain, index: int, page: int) -> int:
        """Page `index` of the chain is full, and `page`, private so far, holds it. Returns the page to use from now on.

        That is `page`, or an equal one that was committed meanwhile; then `page` is released and the other one
        referenced. A page whose parent is not resident for this chain, or whose key stands for other tokens, stays
        private. Raises ValueError for an index that is not full and a page that is not held or not private.
        """
        return self._committing.commit(chain, index, page)

    def begin(self, chain: Chain) -> None:
        """A request for the chain, all of it prompt, has come: it is of use what the last `match` has found of it, and
        stays while others can go. In the end comes `end`, or `leave`."""
        if self._preload is not None:
            self._preload.begin(chain.keys)
        self._usage.begin(chain)

    def leave(self, chain: Chain) -> None:
        """The request that began ends before its turn has come."""
        self._usage.leave(chain)

    def end(self, chain: Chain, pages: Iterable[int], reply_tokens: int) -> None:
        """The request that began is done, and gives back its pages as `release` does."""
        self._usage.end(chain, reply_tokens)
        if self._migration is not None:
            self._migration.fetching.computed(chain, self.prefill_rate)
        if self._preload is not None:
            self._preload.end(chain)
        self.release(pages, used=False)

    def release(self, pages: Iterable[int], *, used: bool = True) -> None:
        """One reference less to each. Committed pages stay, evictable once nobody holds them; private ones are freed.

        `used`: they were of use now, to a request of which nothing else is known.
        Raises ValueError, and changes nothing, for a page that the caller cannot be holding.
        """
        holds = Counter(pages)
        if self.window is not None:
            del holds[GONE]
        for page, count in holds.items():
            # The cache's reference is not the caller's to release.
            if self.pool.references(page) - count < (self._device.members[page] is not None):
                raise ValueError(f"page {page} is released more often than it is held")
        if used and (entries := [entry for page in holds if (entry := self._device.members[page])]):
            self._usage.now(entries)
        self._device.let_go(holds.elements())

    def slide(self, chain: Chain, first: int, pages: Sequence[int]) -> None:
        """The window has passed these pages of the chain, from its page `first` on: whoever computes it lets them go.
        They may be evicted while it goes on, as other pages that nobody holds; what follows needs them no more."""
        for entry in chain.entries[first + 1 : first + 1 + len(pages)]:
            self._device.part(entry)
        self.release(pages, used=False)

    def attach_text(self, chain: Chain, keys: bytes, depths: bytes) -> None:
        """Text keys of this chain, parents first (packed u64), and how many tokens each settles (packed u32). They are
        published while the pages that they hang on (`texts.by_page`) are resident for this chain, now or later.

        Raises ValueError for buffers of different lengths.
        """
        for index, some in by_page(keys, depths).items():
            chain.texts.setdefault(index, []).extend(some)
            if index < len(chain.entries) and self._catalog.has(chain.entries[index]):
                self._catalog.texts.attach(chain.entries[index], some)
        self._catalog.flush()

    def clear(self) -> None:
        """Forgets everything. Pages that sequences hold become theirs alone."""
        self._device.clear()
        if self._migration is not None:
            self._migration.clear()
        self._catalog.clear()

    def stats(self) -> TierLoad:
        """The device tier's pages, as of now."""
        return self._device.stats()

    def tiers(self) -> tuple[TierLoad, ...]:
        """All tiers' pages, as of now."""
        return (self.stats(), *(self._migration.tiers() if self._migration else ()))

    def rates(self) -> TierRates:
        """How fast pages come to faster tiers, as measured lately."""
        return self._migration.rates() if self._migration else TierRates()

    @property
    def false_hits(self) -> int:
        """Matches that ended because a key was there, but not for these tokens after this parent."""
        return self._matching.false_hits

    def counters(self) -> TierCounters:
        """What moved between tiers, ever."""
        counters = self._migration.counters() if self._migration else TierCounters()
        protected = self._visits.protected
        return replace(
            counters,
            gone={(tier.name.lower(), str(reason)): pages for (tier, reason), pages in self._catalog.gone.items()},
            learned={tier.name.lower(): duel.learned for tier, duel in self._visits.duels.items()},
            pinned_pages=len(protected.pinned),
            core_pages=len(protected.core.keys),
            protected_pages=len(protected),
            preloaded_pages=self._preload.pages if self._preload else 0,
            preloaded_used_pages=self._preload.used_pages if self._preload else 0,
        )

    def check(self) -> None:
        """Counts everything anew. Raises RuntimeError with the first thing that does not add up."""
        self._device.check()
        if self._migration is not None:
            self._migration.check()
        self._catalog.check()

    def _bring(self, entries: Sequence[Entry]) -> list[Entry]:
        """`stage`, for a request that is only expected: what comes stays as if it had been of use now."""
        coming = self._migration.stage(entries) if self._migration is not None else []
        if coming:
            self._usage.now(coming)
        return coming
