"""Full pages become resident: found by their key from then on, by whoever has the same prefix."""

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.entry import GONE
from trunkline.agent.cache.level import DeviceLevel


class Committing:
    """Used by one thread at a time: the engine, or its keeper."""

    def __init__(self, catalog: Catalog, device: DeviceLevel) -> None:
        self._catalog = catalog
        self._device = device

    def commit(self, chain: Chain, index: int, page: int) -> int:
        """See `PageCache.commit`."""
        if not 0 <= index < len(chain.keys):
            raise ValueError(f"page {index} of a sequence with {len(chain.keys)} full pages cannot be committed")
        if index > len(chain.entries):
            return page
        parent = chain.entries[index - 1] if index else None
        if parent is not None and parent.page == GONE:
            return page
        key, tokens = chain.keys[index], chain.page(index)
        entry = self._catalog.entries.get(key)
        if entry is not None and not entry.continues(parent, chain.namespace, tokens):
            return page
        member = self._device.members[page]
        if self._device.pool.references(page) <= (member is not None) or member not in (None, entry):
            raise ValueError(f"page {page} is not private to a sequence and cannot be committed")
        if entry is None:
            entry = self._catalog.add(key, parent, chain, tokens, page)
            self._device.add(entry)
        elif entry.page == GONE:  # a lower tier may have it
            self._device.store(entry, page)
            self._catalog.changed(entry)
        elif entry.page != page:  # else it was committed before
            self._device.let_go([page])
            self._device.hold([entry.page])
        chain.entries[index:] = [entry]
        if texts := chain.texts.get(index):
            self._catalog.texts.attach(entry, texts)
        self._catalog.flush()
        return entry.page
