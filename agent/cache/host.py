"""The host tier's memory: one slab of fixed slots, taken once and never given back piecemeal."""

import logging
import mmap

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.lane import Move
from trunkline.shared.errors import ConfigError

_MADV_POPULATE_WRITE = 23
"""Linux 5.14: faults all pages in now, or says that there is no memory for them."""
SLOT_ALIGNMENT = 4096
"""Bytes. Slots start on memory pages, as direct disk IO wants them."""

Blocks = npt.NDArray[np.uint8]
log = logging.getLogger(__name__)


class HostMemory:
    """`blocks` is [pages, page_bytes] u8 with rows on SLOT_ALIGNMENT. Whoever holds a page may read or write it.

    A page is one contiguous block here as on the device, so a move is one copy, made without the interpreter's lock.
    """

    def __init__(self, device: Blocks, size: int) -> None:
        """`device`: the pages of the device tier, [pages, page_bytes] u8; `size` in bytes.

        Raises ConfigError if the memory cannot be had, or holds no page.
        """
        page_bytes = device.shape[1]
        stride = -(-page_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        pages = size // stride
        if pages < 1:
            raise ConfigError(f"--host-memory: {size} bytes hold no page of {stride} bytes")
        self.pages: int = pages
        self.page_bytes: int = page_bytes
        self._stride = stride
        self._device = device
        slab = _slab(pages * stride)
        self._bytes = memoryview(slab)
        self.blocks: Blocks = np.frombuffer(slab, np.uint8).reshape(pages, stride)[:, :page_bytes]
        self.generations = np.zeros(pages, np.uint32)
        """Of the slots, as the engine thread counts them (`level.py`): for who reads pages without asking it."""

    def page(self, page: int) -> memoryview:
        """The content of a page."""
        return self._bytes[page * self._stride : page * self._stride + self.page_bytes]

    def slot(self, page: int) -> memoryview:
        """The same with its padding: whole blocks of SLOT_ALIGNMENT."""
        return self._bytes[page * self._stride : (page + 1) * self._stride]

    def load(self, move: Move) -> None:
        """Host to device."""
        for source, target in zip(move.source, move.target, strict=True):
            self._device[target] = self.blocks[source]

    def save(self, move: Move) -> None:
        """Device to host."""
        for source, target in zip(move.source, move.target, strict=True):
            self.blocks[target] = self._device[source]


def _slab(size: int) -> mmap.mmap:
    """Zeroed memory, in huge pages where the system grants them, all of it there before it is used."""
    try:
        slab = mmap.mmap(-1, size)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"--host-memory: {size / 2**20:.0f} MiB cannot be had: {error}") from None
    try:
        slab.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError):
        log.info("host memory: this system grants no huge pages")
    try:
        slab.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        log.info("host memory: is taken as it is used (%s)", error)
    return slab
