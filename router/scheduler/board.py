"""What the nodes' accounts say, in one block of memory: to keep what a decision saw costs no more than to copy it.

A board is a bytearray with a row per node, by its number in the index. A row is f64s: `fill`, the time of the last
report, `waits` and `drags` of `NodeLoad`. The core weighs nodes by it.
"""

import struct
from collections.abc import Callable
from functools import partial

from trunkline.router.scheduler.sizes import SIZES

_LAYOUT = struct.Struct(f"{2 + 2 * SIZES}d")
ROW_BYTES = _LAYOUT.size


def writer(board: bytearray, index: int) -> Callable[..., None]:
    """What writes a node's row, given its numbers in order. The board grows as it must."""
    board.extend(bytes(max(0, ROW_BYTES * (index + 1) - len(board))))
    return partial(_LAYOUT.pack_into, board, ROW_BYTES * index)


def reported_at(copied: bytes, index: int) -> float:
    """When the node last reported its load, by a copy of a board; -inf: never."""
    at: float = _LAYOUT.unpack_from(copied, ROW_BYTES * index)[1]
    return at
