"""Memory that processes of one machine share: a head, the slots' generations, the slots.

0          magic, count u32, page bytes u32, stride u64, offset of generations u64, of slots u64
4096       a generation (u32) for each slot
aligned    the slots, `stride` apart
"""

import contextlib
import fcntl
import mmap
import os
import struct
import weakref
from typing import NamedTuple

import numpy as np

from trunkline.agent.cache.memfd import HUGE_BYTES, allocate, ask_for_huge_pages
from trunkline.kernels.core import PageSlots

_HEAD = struct.Struct("<8sIIQQQ")
_MAGIC = b"TKVSLAB1"
_HEAD_BYTES = 4096
_GENERATION_BYTES = 4
_F_SEAL_FUTURE_WRITE = 0x10
"""Linux 5.1: nobody who maps it from now on can write."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SlabError(Exception):
    """What was handed over is not a slab of this layout, or could change under who reads it."""


class _Layout(NamedTuple):
    slots: int
    page_bytes: int
    stride: int
    generations: int
    pages: int

    @property
    def size(self) -> int:
        return self.pages + self.slots * self.stride


class Slab:
    """`pages` are the bytes of all slots, `generations` a u32 for each, `slots` both for the core. The maker may write,
    whoever attaches may not."""

    def __init__(self, memory: mmap.mmap, layout: _Layout, file: int) -> None:
        """`file` is the slab's from now on."""
        self.memory = np.frombuffer(memory, np.uint8)
        """All of it."""
        self.huge_bytes = 0
        """Of it in huge pages, as far as somebody has counted."""
        self.pinned = False
        """Whether a GPU may copy from and to it by itself."""
        self.file = file
        """By which other processes map it, to read; closed with the slab."""
        weakref.finalize(self, os.close, file)
        view = memoryview(memory)
        self.pages = view[layout.pages : layout.size]
        self.generations = view[layout.generations : layout.generations + layout.slots * _GENERATION_BYTES]
        self.slots = PageSlots(self.generations, self.pages, layout.stride, layout.page_bytes)


def make(count: int, page_bytes: int, stride: int) -> Slab:
    """Zeroed. Raises OSError, ValueError or OverflowError if the memory cannot be had."""
    behind = _HEAD_BYTES + count * _GENERATION_BYTES
    aligned = HUGE_BYTES if count * stride >= HUGE_BYTES else _HEAD_BYTES
    layout = _Layout(count, page_bytes, stride, _HEAD_BYTES, -(-behind // aligned) * aligned)
    file, memory = allocate(-(-layout.size // aligned) * aligned)
    with open(file, "rb"):
        try:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS | _F_SEAL_FUTURE_WRITE)
        except OSError:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        reading = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    _HEAD.pack_into(memory, 0, _MAGIC, *layout)
    return Slab(memory, layout, reading)


def attach(file: int) -> Slab:
    """Another process's slab, to read; `file` is the slab's from now on, or closed. Raises SlabError, also where its
    maker could take away what is mapped."""
    try:
        return _attach(file)
    except SlabError:
        os.close(file)
        raise


def _attach(file: int) -> Slab:
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        size = os.fstat(file).st_size
        if not seals & fcntl.F_SEAL_SHRINK:
            raise SlabError("the memory handed over could shrink")
        memory = mmap.mmap(file, size, prot=mmap.PROT_READ)
        ask_for_huge_pages(memory)
    except (OSError, ValueError) as error:
        raise SlabError(f"the memory handed over cannot be mapped: {error}") from None
    with contextlib.suppress(struct.error, ValueError):
        magic, *fields = _HEAD.unpack_from(memory)
        layout = _Layout(*fields)
        within = _HEAD_BYTES <= layout.generations <= layout.pages - layout.slots * _GENERATION_BYTES
        if magic == _MAGIC and within and layout.size <= size:
            return Slab(memory, layout, file)
    raise SlabError("the memory handed over has another layout")
