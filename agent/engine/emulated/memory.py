"""The pages of an emulated engine: real bytes that are written from a seed, and from which the seed is read back.

A page is 64-bit words; word w is the page's seed times an odd number of its own, modulo 2^64. Every word alone gives
the seed back, and so do all of them together, unless something else has been written to any of them.
"""

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int32]
Seeds = npt.NDArray[np.uint64]
_WORD = 8
_AT_ONCE = 64
"""Pages that are read in full at once: what stays in a core's cache."""


class PageMemory:
    """`blocks` [pages, page_bytes] u8 is the memory, for copies of whole pages. One writer; nothing is locked."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        words = page_bytes // _WORD
        self._words = np.zeros((pages, words), np.uint64)
        self.blocks: npt.NDArray[np.uint8] = self._words.view(np.uint8)
        self._factors = np.random.default_rng(0).integers(1 << 63, size=words, dtype=np.uint64) * 2 + 1
        self._inverses = _inverse(self._factors)
        # An even number of odd factors has an even sum, which has no inverse: the first one counts twice.
        self._inverse_of_all = _inverse(self._factors.sum(keepdims=True) + self._factors[:1])
        self._column = 0

    def write(self, pages: Pages, seeds: Seeds) -> None:
        """Each page from its seed."""
        self._words[pages] = seeds[:, None] * self._factors

    def read(self, pages: Pages) -> Seeds:
        """The seeds of pages, by every word of them."""
        seeds = np.empty(len(pages), np.uint64)
        for at in range(0, len(pages), _AT_ONCE):
            words = self._words[pages[at : at + _AT_ONCE]]
            seeds[at : at + _AT_ONCE] = words.sum(axis=1) + words[:, 0]
        return seeds * self._inverse_of_all

    def glance(self, pages: Pages) -> Seeds:
        """The seeds of pages, by one word of each; the next time by the next word."""
        column = self._column = (self._column + 1) % len(self._factors)
        seeds: Seeds = self._words[pages, column] * self._inverses[column]
        return seeds


def _inverse(odd: Seeds) -> Seeds:
    """Modulo 2^64; Newton's iteration doubles the bits that are right, of which there are three at first."""
    found = odd.copy()
    for _ in range(5):
        found *= 2 - odd * found
    return found
