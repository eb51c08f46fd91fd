"""Memory that other processes can map: huge pages where the system grants them, all of it there before it is used."""

import logging
import mmap
import os
import re
from pathlib import Path

HUGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23
"""Linux 5.14: faults all pages in now, or says that there is no memory for them."""
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_HUGE = re.compile(r"(?:AnonHugePages|ShmemPmdMapped|Shared_Hugetlb|Private_Hugetlb): +(\d+) kB")
log = logging.getLogger(__name__)


def allocate(size: int) -> tuple[int, mmap.mmap]:
    """A file that can be sealed, and all of it mapped, zeroed.

    Huge pages that an administrator has set aside come first, if `size` is a multiple of HUGE_BYTES and there are
    enough. Else the kernel is asked to make some of ordinary ones (`shmem_enabled`). Raises OSError, ValueError or
    OverflowError if it cannot be had.
    """
    if size % HUGE_BYTES == 0:
        try:
            return _map(size, os.MFD_HUGETLB)
        except OSError:
            pass  # none set aside, or too few
    file, memory = _map(size, 0)
    ask_for_huge_pages(memory)
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        log.info("host memory: is taken as it is used (%s)", error)
    return file, memory


def ask_for_huge_pages(memory: mmap.mmap) -> None:
    """Each process that maps it asks for itself."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError):
        log.info("host memory: this system grants no huge pages")


def _map(size: int, kind: int) -> tuple[int, mmap.mmap]:
    file = os.memfd_create("trunkline-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | kind)
    try:
        os.truncate(file, size)
        if kind:
            os.posix_fallocate(file, 0, size)
        return file, mmap.mmap(file, size)
    except (OSError, ValueError, OverflowError):
        os.close(file)
        raise


def huge_bytes(address: int, size: int) -> int:
    """Of the mapping that `address` is in, at most `size`, in huge pages; 0 where the system does not say."""
    try:
        lines = _SMAPS.read_text().splitlines()
    except OSError:
        return 0
    inside, huge = False, 0
    for line in lines:
        if mapping := _MAPPING.match(line):
            inside = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif inside and (some := _HUGE.match(line)):
            huge += int(some[1]) << 10
    return min(size, huge)
