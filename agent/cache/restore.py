"""Takes over what a disk has from before: entries and copies of what its index says."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from trunkline.agent.cache.catalog import Catalog
from trunkline.agent.cache.disk.live import Live
from trunkline.agent.cache.disk.pause import collection_paused
from trunkline.agent.cache.disk_level import DiskLevel
from trunkline.agent.cache.entry import GONE, Copy, Entry
from trunkline.agent.cache.visits import Visits
from trunkline.shared.names import Tier

STEP_PAGES = 256
"""Whose text keys are taken over at a time."""


def restore(catalog: Catalog, level: DiskLevel, visits: Visits, found: Live) -> Iterator[None]:
    """What was found becomes the members of an empty level; what was written last goes last.

    Nothing is verified here: that happens when a page is read. A hundred thousand pages are to be there in a few
    tenths of a second, so this loop does by itself what `Catalog` and `Level` do one by one elsewhere. No request needs
    text keys to find its pages: each step of what is returned hangs some on their pages, and takes a millisecond or so.
    """
    with collection_paused():
        copies, fresh = _copies(catalog, level, visits, found)
        level.adopt()
        level.placement.adopt(found.puts["slot"], found.puts["hot"] != 0)
        catalog.adopt(found.puts["key"][fresh], found.puts["depth"][fresh])
    return _hang_texts(catalog, [copy.entry if copy else None for copy in copies], found)


def _hang_texts(catalog: Catalog, entries: list[Entry | None], found: Live) -> Iterator[None]:
    texts = zip(found.owners.tolist(), found.texts["key"].tolist(), found.texts["depth"].tolist(), strict=True)
    for number, (owner, some) in enumerate(groupby(texts, itemgetter(0)), 1):
        entry = entries[owner]
        if entry is not None and catalog.has(entry):
            catalog.texts.attach(entry, [(key, depth) for _, key, depth in some])
        if number % STEP_PAGES == 0:
            catalog.flush()
            yield
    catalog.flush()


def _copies(catalog: Catalog, level: DiskLevel, visits: Visits, found: Live) -> tuple[list[Copy | None], list[int]]:
    """Members for everything found, as far as it does not contradict what is known; which ones have a new entry."""
    copies: list[Copy | None] = []
    fresh: list[int] = []
    members, known, namespaces = level.members, catalog.entries, found.namespaces
    newest = int(found.puts["generation"].max(initial=0))
    for position, (above, (slot, _, generation, _, key, depth, number, _, tokens)) in enumerate(
        zip(found.parents.tolist(), found.puts.tolist(), strict=True)
    ):
        copies.append(None)
        beside = parent = namespace = None
        if above < 0:
            namespace = namespaces[number]
        elif beside := copies[above]:
            parent = beside.entry
        else:
            continue
        entry = known.get(key)
        if entry is None:
            used = visits.before(newest - generation)
            entry = known[key] = Entry(key, parent, namespace, tokens, GONE, depth, used=used, tier=Tier.DISK)
            fresh.append(position)
            if parent is not None:
                parent.heirs += 1
        elif entry.disk or entry.parent is not parent or entry.tokens != tokens or entry.namespace != namespace:
            continue
        entry.disk = copies[position] = members[slot] = Copy(entry, slot, beside)
        if beside is not None:
            beside.children += 1
    return copies, fresh
