"""Takes over what a disk has from before: entries and copies of its records."""

import gc
from collections.abc import Sequence

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.disk.record import Record
from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.agent.cache.level import LowerLevel


def restore(catalog: Catalog, level: LowerLevel, records: Sequence[Record]) -> int:
    """`records`, parents first, become the members of an empty level; those written last go last. How many there were.

    Nothing is verified here: that happens when a page is read.
    """
    pages = level.pool.allocate(level.pool.total)
    if pages is None:
        raise RuntimeError("a disk tier is restored before it is used")
    newest = max((record.generation for record in records), default=0)
    collects = gc.isenabled()
    gc.disable()  # a hundred thousand new objects, none of them garbage
    try:
        entries: dict[int, Entry] = {}
        for record in records:
            parent = None if record.parent == NO_PARENT else entries.get(record.parent)
            if parent is None and record.parent != NO_PARENT:
                continue
            entry = catalog.restored(record.key, parent, record.namespace, record.tokens, record.depth)
            if entry is not None and level.store(entry, record.slot, record.generation - newest):
                entries[record.slot] = entry
                catalog.changed(entry)
                if record.texts:
                    catalog.texts.attach(entry, record.texts)
        level.let_go(pages)
        catalog.flush()
    finally:
        if collects:
            gc.enable()
    return len(entries)
