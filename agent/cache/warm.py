"""Which prefixes a node that leaves had better hand to others, and what others are told of a prefix."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.entry import GONE, Entry
from trunkline.agent.cache.level import DeviceLevel


class Prefix(NamedTuple):
    """A chain of resident pages, as another node wants to be told of it."""

    key: int
    """Of its last page."""
    salt: str
    tokens: bytes
    """Packed i32, whole pages."""
    text_keys: bytes
    """Packed u64, parents first."""
    text_depths: bytes
    """Packed u32: how many tokens each settles."""


class Warm:
    """Hands out each prefix once, those used last first: the sessions likeliest to go on. What a sequence is still
    adding to waits until that has ended. Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, catalog: Catalog, device: DeviceLevel) -> None:
        self._catalog = catalog
        self._device = device
        self._given: set[int] = set()
        self._next: Iterator[Entry] = iter(())

    def find(self, key: int) -> Prefix | None:
        """What ends with this page key or text key, whoever uses it. None: it is not here."""
        entry = self._catalog.entries.get(key) or self._catalog.texts.page(key)[0]
        return self._prefix(entry) if entry is not None else None

    def restart(self) -> None:
        """Everything may be handed out again."""
        self._given.clear()
        self._next = iter(())

    def take(self, most: int, tokens: int) -> list[Prefix]:
        """At most so many, and none after those together have so many tokens. None are left: an empty list."""
        taken: list[Prefix] = []
        while len(taken) < most and tokens > 0 and (entry := self._following()) is not None:
            self._given.add(entry.key)
            taken.append(self._prefix(entry))
            tokens -= entry.depth
        return taken

    def _following(self) -> Entry | None:
        entry = next((one for one in self._next if self._rests(one)), None)
        if entry is None:  # Time has gone by since they were put in order: others may rest now.
            resting = [one for one in self._catalog.entries.values() if self._rests(one)]
            resting.sort(key=lambda one: (-one.used, -one.depth))
            self._next = iter(resting)
            entry = next(self._next, None)
        return entry

    def _rests(self, entry: Entry) -> bool:
        """Whether a prefix ends here that is resident, in nobody's use, and was not handed out."""
        if entry.heirs or entry.key in self._given or not self._catalog.has(entry):
            return False
        page = entry.page
        return page == GONE or self._device.pool.references(page) == 1 + self._device.lent[page]

    def _prefix(self, last: Entry) -> Prefix:
        path: list[Entry] = []
        entry: Entry | None = last
        while entry is not None:
            path.append(entry)
            entry = entry.parent
        path.reverse()
        namespace = path[0].namespace
        texts: dict[int, int] = {}
        for entry in path:
            for key, depth in self._catalog.texts.of(entry):
                texts.setdefault(key, depth)
        return Prefix(
            last.key,
            namespace.salt if namespace is not None else "",
            b"".join(entry.tokens for entry in path),
            struct.pack(f"<{len(texts)}Q", *texts),
            struct.pack(f"<{len(texts)}I", *texts.values()),
        )
