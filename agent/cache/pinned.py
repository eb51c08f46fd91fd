"""Pinned pages of a cache."""

from collections.abc import Iterable

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.protected import Protected
from trunkline.shared.names import PAGE_TOKENS


class Pinned:
    """From any thread: a set of keys is replaced as a whole, and a look into the catalog's needs no order."""

    def __init__(self, catalog: Catalog, protected: Protected) -> None:
        self._catalog = catalog
        self._protected = protected

    @property
    def most_pinned(self) -> int:
        """Pages that may be pinned."""
        return self._protected.most

    @property
    def keys(self) -> frozenset[int]:
        return self._protected.pinned

    def pin(self, keys: frozenset[int]) -> None:
        """Pages under these keys, and no others, are pinned: they stay while others can go."""
        self._protected.pinned = keys

    def path(self, key: int) -> tuple[int, ...]:
        """Keys of the pages up to the one that this page key or text key ends with; empty: it is not here."""
        entry = self._catalog.entries.get(key)
        depth = entry.depth if entry is not None else 0
        if entry is None:
            entry, depth = self._catalog.texts.page(key)
        keys = []
        while entry is not None:
            keys.append(entry.key)
            entry = entry.parent
        return tuple(reversed(keys))[: depth // PAGE_TOKENS]

    def held(self, keys: Iterable[int]) -> int:
        """How many of these pages are in some tier, as of now."""
        entries = self._catalog.entries
        return sum(key in entries for key in keys)
