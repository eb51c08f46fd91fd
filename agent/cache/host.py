"""The host tier's memory: one slab of fixed slots, taken once and never given back piecemeal."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trunkline.agent.cache.codec import Blocks, Codec, NativeCodec, TierFormat
from trunkline.agent.cache.lane import Move
from trunkline.agent.cache.slab import Slab, make
from trunkline.kernels.core import PageSlots
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import Tier

SLOT_ALIGNMENT = 4096
"""Bytes. Slots start on memory pages, as direct disk IO wants them."""


class PageMemory(NamedTuple):
    """Where a node's pages lie, for whoever lends them."""

    host: Slab
    device: PageSlots | None
    """None: pages there are not as they are in the host, and a reader takes one kind."""
    codec: str = TierFormat.NATIVE
    """How they are kept."""

    @property
    def regions(self) -> list[tuple[Tier, PageSlots]]:
        """What can be read, by tier."""
        device = [(Tier.DEVICE, self.device)] if self.device is not None else []
        return [*device, (Tier.HOST, self.host.slots)]


class HostMemory:
    """`blocks` is [pages, page_bytes] u8 with rows on SLOT_ALIGNMENT. Whoever holds a page may read or write it.
    `slab` is the same for other processes, with a generation for each page.

    A page is one contiguous block here as on the device, so a move is one copy, made without the interpreter's lock.
    """

    def __init__(self, device: Blocks, size: int, codec: Codec | None = None) -> None:
        """`device`: the pages of the device tier, [pages, bytes of each] u8; `size` in bytes; `codec`: how a page is
        kept here, None: as it is.

        Raises ConfigError if the memory cannot be had, or holds no page.
        """
        self.codec = codec or NativeCodec(device.shape[1])
        page_bytes = self.codec.page_bytes
        stride = -(-page_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        pages = size // stride
        if pages < 1:
            raise ConfigError(f"--host-memory: {size} bytes hold no page of {stride} bytes")
        self.pages: int = pages
        self.page_bytes: int = page_bytes
        self._stride = stride
        self._device = device
        self.as_on_device = self.codec.name == TierFormat.NATIVE
        """Whether a page here has the bytes that it has there."""
        try:
            self.slab = make(pages, page_bytes, stride)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"--host-memory: {size / 2**20:.0f} MiB cannot be had: {error}") from None
        self._bytes = self.slab.pages
        self.blocks: Blocks = np.frombuffer(self._bytes, np.uint8).reshape(pages, stride)[:, :page_bytes]
        self.generations = np.frombuffer(self.slab.generations, np.uint32)
        """Of the slots, as the engine thread counts them (`level.py`): for who reads pages without asking it."""

    def lendable(self, device_generations: npt.NDArray[np.uint32]) -> PageMemory:
        """With the device's, whose generations are these."""
        device = None
        if self.as_on_device:
            device = PageSlots(device_generations.data, self._device.data, self.page_bytes, self.page_bytes)
        return PageMemory(self.slab, device, self.codec.name)

    def page(self, page: int) -> memoryview:
        """The content of a page."""
        return self._bytes[page * self._stride : page * self._stride + self.page_bytes]

    def slot(self, page: int) -> memoryview:
        """The same with its padding: whole blocks of SLOT_ALIGNMENT."""
        return self._bytes[page * self._stride : (page + 1) * self._stride]

    def load(self, move: Move) -> None:
        """Host to device."""
        for source, target in zip(move.source, move.target, strict=True):
            self.codec.decode(self.blocks[source], self._device[target])

    def save(self, move: Move) -> None:
        """Device to host."""
        for source, target in zip(move.source, move.target, strict=True):
            self.codec.encode(self._device[source], self.blocks[target])
