"""Which text keys hang on which resident page.

The same text key can hang on several pages: on neighbours (see `by_page`), and where equal text settled
at different depths or was rendered into other tokens on another day. It is published once, with the depth that it has
on the page that has had it longest and in that page's tier, until the last of them goes.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable

from trunkline.agent.cache.entry import Entry
from trunkline.agent.cache.publisher import Publisher
from trunkline.shared.names import MAX_TEXT_KEYS_PER_PAGE, PAGE_TOKENS


class TextKeys:
    """The text keys of one cache, at most MAX_TEXT_KEYS_PER_PAGE for each page."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        # Pages of each published key with the key's depth there, longest first. Tuples, nearly always of one pair:
        # unlike lists they drop out of garbage collection.
        self._pages: dict[int, tuple[tuple[Entry, int], ...]] = {}

    def attach(self, entry: Entry, texts: Iterable[tuple[int, int]]) -> None:
        """Hangs (key, depth) pairs of one chain, parents first, on a resident page.

        `entry.texts` has the least recently attached first, and children before parents (who attaches a child
        attaches its parent): in that order keys give way to newer ones, and go with the page.
        """
        depths = dict(texts)
        before = entry.texts
        merged = [key for key in before if key not in depths] + list(reversed(depths))
        entry.texts = tuple(merged[-MAX_TEXT_KEYS_PER_PAGE:])
        for key in before:
            if key not in entry.texts:
                self._drop(key, entry)
        for key, depth in depths.items():
            if key in entry.texts and key not in before:
                self._add(key, entry, depth)

    def detach(self, entry: Entry) -> None:
        """The page goes, and its text keys with it."""
        for key in entry.texts:
            self._drop(key, entry)
        entry.texts = ()

    def of(self, entry: Entry) -> tuple[tuple[int, int], ...]:
        """The keys that hang on the page, with their depths there, as `attach` takes them."""
        return tuple((key, depth) for key in reversed(entry.texts) for page, depth in self._pages[key] if page is entry)

    def page(self, key: int) -> tuple[Entry | None, int]:
        """The page that the key is published with, and how many tokens it settles there; from any thread."""
        pages = self._pages.get(key, ())
        return pages[0] if pages else (None, 0)

    def moved(self, entry: Entry) -> None:
        """The page is in another tier, and its text keys with it."""
        for key in entry.texts:
            if self._pages[key][0][0] is entry:
                self._publisher.moved(key, entry.tier)

    def clear(self) -> None:
        """Forgets every key and says nothing: the whole summary is being cleared."""
        self._pages.clear()

    def published(self) -> Iterable[int]:
        """Every key that stands published."""
        return self._pages.keys()

    def check(self, resident: Iterable[Entry]) -> None:
        """Raises RuntimeError unless exactly the pages in `resident` have the keys that they say they have."""
        said = 0
        for entry in resident:
            said += len(entry.texts)
            for key in entry.texts:
                if not any(page is entry for page, _ in self._pages.get(key, ())):
                    raise RuntimeError(f"page {entry.page} has a text key {key:016x} that does not know of it")
        kept = sum(map(len, self._pages.values()))
        if said != kept:
            raise RuntimeError(f"pages have {said} text keys, text keys have {kept} pages")

    def _add(self, key: int, entry: Entry, depth: int) -> None:
        pages = self._pages.get(key, ())
        self._pages[key] = (*pages, (entry, depth))
        if not pages:
            self._publisher.stored(key, depth, entry.tier)

    def _drop(self, key: int, entry: Entry) -> None:
        pages = self._pages[key]
        left = tuple(pair for pair in pages if pair[0] is not entry)
        if not left:
            del self._pages[key]
            self._publisher.removed(key)
            return
        self._pages[key] = left
        first, depth = left[0]
        if depth != pages[0][1]:
            self._publisher.removed(key)
            self._publisher.stored(key, depth, first.tier)
        elif first.tier is not pages[0][0].tier:
            self._publisher.moved(key, first.tier)


def by_page(keys: bytes, depths: bytes) -> dict[int, list[tuple[int, int]]]:
    """On which pages of a chain, by index, its text keys hang, each with its depth.

    `keys`: parents first (packed u64). `depths`: how many tokens each settles (packed u32); only whole pages count.
    A key hangs on the page that ends at its depth. It hangs on the page after that one too, where its children begin: a
    page that many conversations share, such as the end of a system prompt, has no room for the next key of each. A key
    that settles no page more than its parent is only of use to its children, so it hangs on the page after alone.
    Raises ValueError for buffers of different lengths.
    """
    try:
        packed = zip(struct.iter_unpack("<Q", keys), struct.iter_unpack("<I", depths), strict=True)
        texts = [(key, depth // PAGE_TOKENS) for (key,), (depth,) in packed]
    except (struct.error, ValueError):
        raise ValueError(f"{len(keys)} bytes of text keys with {len(depths)} bytes of depths") from None
    hanging: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    settled = 0
    for key, pages in texts:
        if pages > settled:
            hanging[pages - 1].append((key, pages * PAGE_TOKENS))
        hanging[pages].append((key, pages * PAGE_TOKENS))
        settled = pages
    return hanging
