"""What the nodes' accounts say, in one block of memory: to keep what a decision saw costs no more than to copy it.

A board is a bytearray with a row per node, by its number in the index.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

_LAYOUT = struct.Struct("4d")
ROW_BYTES = _LAYOUT.size


class Row(NamedTuple):
    """One node's account: what `NodeLoad` says of these."""

    wait_s: float
    excess: float
    fill: float
    reported_at: float
    """When the node last reported its load; -inf: never."""


def writer(board: bytearray, index: int) -> Callable[[float, float, float, float], None]:
    """What writes a node's row, given the fields in order. The board grows as it must."""
    board.extend(bytes(max(0, ROW_BYTES * (index + 1) - len(board))))
    return partial(_LAYOUT.pack_into, board, ROW_BYTES * index)


def row(copied: bytes, index: int) -> Row:
    """Of a copy of a board."""
    return Row(*_LAYOUT.unpack_from(copied, ROW_BYTES * index))
