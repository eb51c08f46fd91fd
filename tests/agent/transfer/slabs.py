"""Slabs with content that says whose it is."""

import numpy as np

from trunkline.agent.cache import slab
from trunkline.agent.cache.slab import Slab
from trunkline.agent.transfer.backend import Slots
from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.shared.names import Tier

PAGE_BYTES = 5000
STRIDE = 8192
SECRET = "a secret of the tests"
EPOCH = 7


def make(count: int, *, first: int = 0, page_bytes: int = PAGE_BYTES) -> Slab:
    """Page i is all `first` + i."""
    made = slab.make(count, page_bytes, STRIDE)
    for number in range(count):
        page(made, number)[:] = first + number
    return made


def page(of: Slab, number: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """[page_bytes] u8, shared with the slab."""
    return np.frombuffer(of.pages, np.uint8)[number * STRIDE : number * STRIDE + of.slots.page_bytes]


def located(of: Slab, numbers: list[int]) -> Descriptors:
    """Where pages lie, as of now."""
    return np.array([(Tier.HOST, n, generations(of)[n]) for n in numbers], DESCRIPTOR)


def targets(numbers: list[int]) -> Slots:
    return np.array(numbers, np.uint32)


def generations(of: Slab) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """[slots], shared with the slab."""
    return np.frombuffer(of.generations, np.uint32)
