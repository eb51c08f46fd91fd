"""How the C library hands memory to torch, and what a GPU may reach."""

import ctypes
import logging

import numpy as np
import numpy.typing as npt
import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
log = logging.getLogger(__name__)


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed blocks for the next allocation instead of returning each to the kernel.

    The tensors of a step are megabytes; by default each is mapped, faulted in page by page and unmapped again, which
    costs up to ten times the operation that fills it. For the whole process; what is kept is bounded by the peak.
    Returns whether the C library took it (others than glibc do not know the call).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_M_TRIM_THRESHOLD, _LARGEST))


def pin(memory: npt.NDArray[np.uint8]) -> bool:
    """Pins memory, for as long as the process lives, so that a GPU copies from and to it by itself.

    False: there is no GPU, or it was refused; copies work all the same, through a buffer of the driver's.
    """
    if not torch.cuda.is_available():
        return False
    error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))  # type: ignore[no-untyped-call]
    if error:
        log.warning("%.0f MiB could not be pinned: CUDA error %d", memory.nbytes / 2**20, error)
    return not error
