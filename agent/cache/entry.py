"""A page: what was computed, after what, where its copies lie, and who needs it."""

from typing import Protocol

import msgspec

from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace


class Entry(msgspec.Struct, eq=False, gc=False):
    """One page in the prefix map, and at the same time its copy on the device.

    Entries form a tree, and so do the copies of each tier: a copy has its parent's copy beside it.
    It refers to its parent itself, not to a number: a page that is evicted and used again is never mistaken for the
    parent it was. It is left out of garbage collection, which would stop the process for tens of milliseconds at
    100,000 pages: the cycle with its copies is broken by who drops them.
    """

    key: int
    parent: "Entry | None"
    """None: the first page of a sequence."""
    namespace: Namespace | None
    """Of a first page; a later one has its parent's."""
    tokens: bytes
    """The 16 token ids, packed i32."""
    page: int
    """On the device; GONE if it is not there."""
    depth: int
    """Tokens from the start of the sequence to the end of this page."""
    children: int = 0
    """Entries on the device whose base this is."""
    used: int = 0
    """The visit that last used it, wherever it was read; see `visits.py`."""
    texts: tuple[int, ...] = ()
    """Text keys that hang on this page; see `texts.py`."""
    tier: Tier = Tier.DEVICE
    """The fastest that has it, as published."""
    host: "Copy | None" = None
    disk: "Copy | None" = None
    heirs: int = 0
    """Entries whose parent this is."""
    alone: bool = False
    """Its parent need not be on the device: nobody who goes on after it attends to that any more."""

    @property
    def base(self) -> "Entry | None":
        """What must be on the device with it."""
        return None if self.alone else self.parent

    def continues(self, parent: "Entry | None", namespace: Namespace, tokens: bytes) -> bool:
        """Whether this entry is these 16 tokens after that verified parent. Equal keys do not say so."""
        return self.parent is parent and self.tokens == tokens and (parent is not None or self.namespace == namespace)


class Copy(msgspec.Struct, eq=False, gc=False):
    """An entry's page in a lower tier."""

    entry: Entry
    page: int
    """Its number in that tier; GONE once dropped."""
    base: "Copy | None"
    """Its parent's, which must be in that tier with it. None: a first page, or see `Level.closed`."""
    children: int = 0

    @property
    def key(self) -> int:
        return self.entry.key

    @property
    def used(self) -> int:
        return self.entry.used


class Member(Protocol):
    """What the pages of any tier have in common: `Entry` on the device, `Copy` below."""

    page: int
    children: int

    @property
    def base(self) -> "Member | None": ...

    @property
    def key(self) -> int: ...

    @property
    def used(self) -> int: ...


GONE = -1
PAGE_BYTES = PAGE_TOKENS * 4
"""Bytes of a page's packed token ids."""
