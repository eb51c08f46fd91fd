"""What the nodes' accounts say, in one block of memory: the core weighs all nodes by it in one go.

A board is a bytearray with a row of f64s per node, by its number in the index. First what is true for every prompt, as
`Row.account` takes it. Then by size (`sizes`) what shorter prompts do not wait for, and how many they hold up.
"""

import struct
from functools import partial

from trunkline.router.scheduler.sizes import SIZES

_ACCOUNT = struct.Struct("7d")
_PASSING = struct.Struct(f"{2 * SIZES}d")
_ROW_BYTES = _ACCOUNT.size + _PASSING.size


class Row:
    """A node's. It need only be told what has changed."""

    __slots__ = ("account", "passing")

    def __init__(self, board: bytearray, index: int) -> None:
        """The board grows as it must."""
        board.extend(bytes(max(0, _ROW_BYTES * (index + 1) - len(board))))
        self.account = partial(_ACCOUNT.pack_into, board, _ROW_BYTES * index)
        """Load, time of the last report, wait, drag, seconds per token from the host tier and from disk, and whether
        `passing` counts."""
        self.passing = partial(_PASSING.pack_into, board, _ROW_BYTES * index + _ACCOUNT.size)
        """Seconds by size, then numbers by size."""
