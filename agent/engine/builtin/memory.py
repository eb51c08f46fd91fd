"""How the C library hands memory to torch."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


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
