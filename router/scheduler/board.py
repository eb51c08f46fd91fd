"""What the nodes' accounts say, in one block of memory: to keep what a decision saw costs no more than to copy it.

A board is a bytearray with a row per node, by its number in the index.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from trunkline.router.scheduler.sizes import SIZES

_LAYOUT = struct.Struct(f"{2 + 2 * SIZES}d")
ROW_BYTES = _LAYOUT.size


class Row(NamedTuple):
    """One node's account: what `NodeLoad` says of these."""

    fill: float
    reported_at: float
    """When the node last reported its load; -inf: never."""
    waits: tuple[float, ...]
    drags: tuple[float, ...]


def writer(board: bytearray, index: int) -> Callable[..., None]:
    """What writes a node's row, given the fields in order, the last two one by one. The board grows as it must."""
    board.extend(bytes(max(0, ROW_BYTES * (index + 1) - len(board))))
    return partial(_LAYOUT.pack_into, board, ROW_BYTES * index)


def row(copied: bytes, index: int) -> Row:
    """Of a copy of a board."""
    fill, reported_at, *rest = _LAYOUT.unpack_from(copied, ROW_BYTES * index)
    return Row(fill, reported_at, tuple(rest[:SIZES]), tuple(rest[SIZES:]))
