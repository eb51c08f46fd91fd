"""Which pages of a chain are there, verified: a key alone proves nothing."""

import logging
from itertools import islice

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import Entry

log = logging.getLogger(__name__)


class Matching:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, catalog: Catalog) -> None:
        self.false_hits = 0
        """Prefixes that ended because a key was there, but not for these tokens after this parent."""
        self._catalog = catalog

    def prefix(self, chain: Chain, most: int) -> list[Entry]:
        """The chain's first pages that are in some tier, at most so many: compared, not only found."""
        entries: list[Entry] = []
        parent: Entry | None = None
        find, namespace = self._catalog.entries.get, chain.namespace
        for key, tokens in zip(islice(chain.keys, most), chain.pages(), strict=False):
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
        return entries

    def follow(self, chain: Chain, entries: list[Entry]) -> None:
        """The chain's verified pages are now `entries`: its text keys hang on those that it did not have before."""
        before, chain.entries = chain.entries, entries
        for index, texts in chain.texts.items():
            if index < len(entries) and (index >= len(before) or before[index] is not entries[index]):
                self._catalog.texts.attach(entries[index], texts)
        self._catalog.flush()
