"""A resident page: what was computed, after what, and who needs it."""

import msgspec

from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace


class Entry(msgspec.Struct, eq=False, gc=False):
    """One page in the prefix map. Entries form a tree; a child cannot be resident without its parent.

    It refers to its parent itself, not to a number: a page that is evicted and used again is never mistaken for the
    parent it was. It is left out of garbage collection (no cycles: it knows its parent only), which would stop the
    process for tens of milliseconds at 100,000 pages.
    """

    key: int
    parent: "Entry | None"
    """None: the first page of a sequence."""
    namespace: Namespace | None
    """Of a first page; a later one has its parent's."""
    tokens: bytes
    """The 16 token ids, packed i32."""
    page: int
    """GONE once it is no longer resident."""
    depth: int
    """Tokens from the start of the sequence to the end of this page."""
    children: int = 0
    """Resident entries whose parent this is."""
    used: int = 0
    """When a holder last let go of it, in the cache's own count of releases."""
    texts: tuple[int, ...] = ()
    """Text keys that hang on this page; see `texts.py`."""

    def continues(self, parent: "Entry | None", namespace: Namespace, tokens: bytes) -> bool:
        """Whether this entry is these 16 tokens after that verified parent. Equal keys do not say so."""
        return self.parent is parent and self.tokens == tokens and (parent is not None or self.namespace == namespace)


GONE = -1
PAGE_BYTES = PAGE_TOKENS * 4
"""Bytes of a page's packed token ids."""
