"""Every page that is in some tier, by key, and what routers are told of it."""

from collections import Counter
from enum import StrEnum

from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.eviction import M
from trunkline.agent.cache.level import Level
from trunkline.agent.cache.publisher import Numbers, Publisher
from trunkline.agent.cache.sink import SummarySink
from trunkline.agent.cache.texts import TextKeys
from trunkline.shared.names import PAGE_TOKENS, Tier


class Reason(StrEnum):
    """Why a page left a tier."""

    ROOM = "room"
    """Others needed it."""
    COPIED = "copied"
    """To have room: it is in the tier below."""
    SHORT = "short"
    """To have room, and its segment was too short to be worth its bytes in the tier below."""
    EXPIRED = "expired"
    """Nobody used it for too long."""
    DAMAGED = "damaged"
    """It, or a page before it, is not what it should be."""


class Catalog:
    """Used by one thread at a time: the engine, or its keeper.

    The set of keys in it is prefix-closed, and so is what has been published.

    An entry that others hang on stays when its last copy has gone, and with it its key: they are verified through it.
    That is so only where a tier is not `closed`.
    """

    def __init__(self, sink: SummarySink) -> None:
        self.entries: dict[int, Entry] = {}
        self.gone: Counter[tuple[Tier, Reason]] = Counter()
        """Pages that left a tier, ever."""
        self._publisher = Publisher(sink)
        self.texts = TextKeys(self._publisher)
        self.flush = self._publisher.flush

    def add(self, key: int, parent: Entry | None, chain: Chain, tokens: bytes, page: int) -> Entry:
        """A page that is in no tier yet, now on the device."""
        depth = PAGE_TOKENS if parent is None else parent.depth + PAGE_TOKENS
        entry = Entry(key, parent, chain.namespace if parent is None else None, tokens, page, depth, used=chain.used)
        self.admit(entry)
        return entry

    def admit(self, entry: Entry) -> None:
        """An entry that was in no tier is in `entry.tier` now; its parent is in some."""
        self.entries[entry.key] = entry
        if entry.parent is not None:
            entry.parent.heirs += 1
        self._publisher.stored(entry.key, entry.depth, entry.tier)

    def adopt(self, keys: Numbers, depths: Numbers) -> None:
        """`entries` has new ones with these keys, on the disk, put there by other means, parents first."""
        self._publisher.stored_many(keys, depths, Tier.DISK)

    def has(self, entry: Entry) -> bool:
        """Whether the entry is here."""
        return self.entries.get(entry.key) is entry

    def changed(self, entry: Entry) -> None:
        """Copies of the entry came or went. If the last one did, so does the entry, unless others hang on it."""
        if entry.page != GONE:
            tier = Tier.DEVICE
        elif entry.host is not None:
            tier = Tier.HOST
        elif entry.disk is not None:
            tier = Tier.DISK
        else:
            if self.has(entry):  # else it went with the last that hung on it
                self._remove(entry)
            return
        if tier is not entry.tier:
            entry.tier = tier
            self._publisher.moved(entry.key, tier)
            self.texts.moved(entry)

    def _remove(self, entry: Entry) -> None:
        """An entry without copies, and those before it that had stayed for it alone."""
        while not entry.heirs and entry.page == GONE and entry.host is None and entry.disk is None:
            del self.entries[entry.key]
            self.texts.detach(entry)
            self._publisher.removed(entry.key)
            if entry.parent is None:
                return
            entry = entry.parent
            entry.heirs -= 1

    def evict(self, level: Level[M], count: int) -> bool:
        """Lets the next `count` pages of a tier go, or none at all."""
        evicted = level.evict(count)
        self.gone[level.tier, Reason.ROOM] += len(evicted or ())
        for member in evicted or ():
            self.changed(level.entry_of(member))
        return evicted is not None

    def remove(self, level: Level[M], member: M, reason: Reason) -> None:
        """Lets this page of a tier go; it may go."""
        self.gone[level.tier, reason] += 1
        level.remove(member)
        self.changed(level.entry_of(member))

    def clear(self) -> None:
        """Forgets everything, after the tiers have."""
        self.entries.clear()
        self.texts.clear()
        self._publisher.cleared()

    def check(self) -> None:
        """Raises RuntimeError with the first thing that does not add up."""
        heirs = Counter(entry.parent.key for entry in self.entries.values() if entry.parent is not None)
        for key, entry in self.entries.items():
            if entry.key != key:
                raise RuntimeError(f"key {key:016x} leads to the page of another")
            if entry.heirs != heirs[key]:
                raise RuntimeError(f"{heirs[key]} pages hang on key {key:016x}, {entry.heirs} are counted")
            if entry.page == GONE and entry.host is None and entry.disk is None and not entry.heirs:
                raise RuntimeError(f"key {key:016x} has a page that is in no tier")
            if entry.parent is not None and self.entries.get(entry.parent.key) is not entry.parent:
                raise RuntimeError(f"key {key:016x} is there without its parent")
        self.texts.check(self.entries.values())
        published = 0
        for key in (*self.entries, *self.texts.published()):
            published ^= key
        count = len(self.entries) + sum(1 for _ in self.texts.published())
        if (count, published) != (self._publisher.count, self._publisher.xor):
            raise RuntimeError(f"{count} keys are resident, {self._publisher.count} published, or they differ")
