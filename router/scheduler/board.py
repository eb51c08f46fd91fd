"""What the nodes' accounts say, in blocks of memory: the core weighs all nodes by them in one go.

A block is a bytearray with a row of f64s per node, by its number in the index. What every decision reads of every node
is in a block by itself, so that it takes few lines of a cache.
"""

import struct
from functools import partial

from trunkline.router.scheduler.sizes import SIZES

_ACCOUNT = struct.Struct("8d")
_PASSING = struct.Struct(f"{2 * SIZES}d")
_LINK = struct.Struct("6d")


class Board:
    """Of a fleet. It grows as it must."""

    __slots__ = ("accounts", "links", "passing")

    def __init__(self) -> None:
        self.accounts = bytearray()
        self.passing = bytearray()
        self.links = bytearray()

    def row(self, index: int) -> "Row":
        return Row(
            _packer(_ACCOUNT, self.accounts, index),
            _packer(_PASSING, self.passing, index),
            _packer(_LINK, self.links, index),
        )


def _packer(columns: struct.Struct, block: bytearray, index: int) -> "partial[None]":
    start = columns.size * index
    block.extend(bytes(max(0, start + columns.size - len(block))))
    return partial(columns.pack_into, block, start)


class Row:
    """A node's. It need only be told what has changed."""

    __slots__ = ("account", "link", "passing")

    def __init__(self, account: "partial[None]", passing: "partial[None]", link: "partial[None]") -> None:
        self.account = account
        """Load, time of the last report, wait, drag, seconds per token from the host tier and from disk, whether
        `passing` counts, and whether `link` does."""
        self.passing = passing
        """Seconds by size that a prompt of it does not wait for shorter ones, then how many prompts it holds up."""
        self.link = link
        """Tokens per second; when it is free of what comes in, and of what goes out; tokens that the node takes without
        pushing out what is in use, and without pushing anything out; tokens of a step."""
