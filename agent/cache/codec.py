"""How pages are kept below the device: as they are, or smaller."""

from enum import StrEnum
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trunkline.shared.namespace import Namespace

Blocks = npt.NDArray[np.uint8]


class TierFormat(StrEnum):
    """What an operator may choose for host and disk."""

    NATIVE = "native"
    INT8 = "int8"
    FP8 = "fp8"


class Codec(Protocol):
    """Called from the threads that copy, two at a time; without the interpreter's lock where it counts."""

    name: str
    """As in TierFormat."""
    page_bytes: int
    """Of a page as it is stored; a multiple of 256."""

    def encode(self, page: Blocks, stored: Blocks) -> None:
        """A page of the device, u8 [bytes of it], to u8 [page_bytes]."""

    def decode(self, stored: Blocks, page: Blocks) -> None:
        """The way back."""


def stored(namespace: Namespace, codec: str) -> Namespace:
    """What must be equal before pages that this codec has made may be shared."""
    if codec == TierFormat.NATIVE:
        return namespace
    return msgspec.structs.replace(namespace, dtype=f"{namespace.dtype}/{codec}")


class NativeCodec:
    """Pages are copied as they are."""

    name = TierFormat.NATIVE.value

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes

    def encode(self, page: Blocks, stored: Blocks) -> None:
        stored[:] = page

    def decode(self, stored: Blocks, page: Blocks) -> None:
        page[:] = stored
