"""Takes over what a disk has from before: entries and copies of what its index says."""

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.disk.pause import collection_paused
from trunkline.agent.cache.disk.store import Found
from trunkline.agent.cache.entry import GONE, Copy, Entry
from trunkline.agent.cache.lane import NO_PARENT
from trunkline.agent.cache.level import LowerLevel
from trunkline.shared.names import Tier


def restore(catalog: Catalog, level: LowerLevel, found: Found) -> int:
    """What was found becomes the members of an empty level; what was written last goes last. How many there are.

    Nothing is verified here: that happens when a page is read. A hundred thousand pages are to be there in a few
    tenths of a second, so this loop does by itself what `Catalog` and `Level` do one by one elsewhere.
    """
    members = level.members
    with collection_paused():
        entries = _entries(catalog, level, found)
        level.adopt()
        catalog.adopt(entries)
        catalog.texts.adopt((copy.entry, texts) for slot, texts in found.texts.items() if (copy := members[slot]))
    catalog.flush()
    return level.idle


def _entries(catalog: Catalog, level: LowerLevel, found: Found) -> list[Entry]:
    """Members for everything found; the entries that are new."""
    fresh: list[Entry] = []
    members, known, namespaces = level.members, catalog.entries, found.namespaces
    newest = max((fields[2] for fields in found.puts), default=0)
    for slot, above, generation, _, key, depth, number, tokens in found.puts:
        beside = parent = namespace = None
        if above == NO_PARENT:
            namespace = namespaces[number]
        else:
            beside = members[above]
            if beside is None:
                continue
            parent = beside.entry
        entry = known.get(key)
        if entry is None:
            entry = known[key] = Entry(key, parent, namespace, tokens, GONE, depth, tier=Tier.DISK)
            fresh.append(entry)
        elif entry.disk or entry.parent is not parent or entry.tokens != tokens or entry.namespace != namespace:
            continue
        entry.disk = members[slot] = Copy(entry, slot, beside, 0, generation - newest)
        if beside is not None:
            beside.children += 1
    return fresh
