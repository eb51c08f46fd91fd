"""What two nodes say to each other: frames, the messages in them, and what is believed of them.

A frame is a head (size u32, kind u8, number u32) and so many bytes. Questions and answers of the page locator are the
core's (`docs/develop/locator.md`); everything else is a MessagePack array as in `shared/wire.py`. All of it is in
`docs/develop/transfer.md`.
"""

import asyncio
import hashlib
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np

from trunkline.agent.transfer.descriptors import DESCRIPTOR, Descriptors
from trunkline.agent.transfer.errors import FrameError
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.proof import NONCE_BYTES, PROOF_BYTES
from trunkline.kernels.core import PAGE_TOKENS, decode_locate, decode_located, encode_locate
from trunkline.shared.errors import WireError
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Name, unpack

VERSION = 1
HEAD = struct.Struct("<IBI")
MAX_CONTROL_BYTES = 8192
MAX_LOCATE_BYTES = 1024
MAX_QUESTIONS = 4
"""On a connection at a time; a reader waits with the next, a holder ends the connection of one that does not."""
_PAGE_BYTES = 4 * PAGE_TOKENS + DESCRIPTOR.itemsize + 1
"""Of an answer, per page of the chain at most: token ids, place, bitmap."""
_RUNG_STEP = 1.25
SILENCE_S = 10.0

_T = TypeVar("_T", bound=msgspec.Struct)
_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Kind(IntEnum):
    """What a frame holds."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4
    LOCATE = 5
    LOCATED = 6
    RELEASE = 7
    """Nothing: the number is that of the question whose lease ends."""


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    """Holder to reader, first of all."""

    version: int
    nonce: _Nonce


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Reader to holder. `namespace` has no salt; KV is shared only where it is the same."""

    version: int
    node: Name
    nonce: _Nonce
    proof: _Proof
    namespace: Namespace


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """Holder to reader."""

    node: Name
    proof: _Proof
    offer: Offer
    """How its pages can be read. A host that is unspecified stands for the one that was asked."""


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """Holder to reader; the connection ends after it."""

    reason: _Text


class Frame(NamedTuple):
    """`number`: of the question; 0 for all that is none."""

    kind: int
    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Locate:
    """A question: where are the pages `first .. count` of a chain?"""

    namespace: bytes
    """See `digest`."""
    first: int
    count: int
    wait_s: float
    """The answer may wait so long for page `first` to be lendable."""
    lease_s: float
    rungs: Sequence[tuple[int, int]]
    """(pages, key of the last of them), deepest first."""

    def encode(self) -> bytes:
        """Raises ValueError for numbers that cannot be."""
        wait, lease = _ms(self.wait_s), _ms(self.lease_s)
        return encode_locate(self.namespace, self.first, self.count, wait, lease, self.rungs)

    @classmethod
    def decode(cls, body: bytes) -> "Locate":
        """Raises FrameError."""
        try:
            namespace, first, count, wait, lease, rungs = decode_locate(body)
        except ValueError as error:
            raise FrameError(f"question of {len(body)} bytes: {error}") from None
        return cls(namespace, first, count, wait / 1000, lease / 1000, rungs)


@dataclass(frozen=True, slots=True)
class Answer:
    """Where pages are, as far as their token ids were found to be those of the reader's chain."""

    epoch: int
    first: int
    held: int
    """Pages of the chain that the holder has in some tier, as it says; what is not lent yet may be asked for again."""
    lease_s: float
    descriptors: Descriptors
    """Of pages `first ..`, tier NOT_LENT where one is not lent."""
    false: int
    """Pages that were described, but come after token ids that differ."""

    @classmethod
    def decode(cls, body: bytes, tokens: bytes) -> "Answer":
        """`tokens`: of the reader's chain, packed i32. Raises FrameError."""
        try:
            epoch, first, held, lease, described, rows = decode_located(body, tokens)
        except ValueError as error:
            raise FrameError(f"answer of {len(body)} bytes: {error}") from None
        descriptors = np.frombuffer(rows, DESCRIPTOR)
        return cls(epoch, first, held, lease / 1000, descriptors, described - len(descriptors))


def rungs(keys: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Of the keys of a chain that of page `count - 1`, and those of pages ever further above, a quarter further each
    time: what a holder has is found to within a quarter of what it lacks. 51 keys for 80,000 pages."""
    chosen, above = [], 0
    while above < count:
        chosen.append((count - above, keys[count - above - 1]))
        above = max(above + 1, int(above * _RUNG_STEP))
    return chosen


def digest(namespace: Namespace) -> bytes:
    """How questions name a namespace, salt included."""
    return hashlib.sha256(namespace.page_seed_bytes()).digest()


def most_bytes(pages: int) -> int:
    """Of the answer about a chain of so many pages."""
    return 256 + pages * _PAGE_BYTES


def frame(kind: Kind, message: msgspec.Struct) -> bytes:
    """A frame with a message of this module."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body), kind, 0) + body


def give_up_on_silence(writer: asyncio.StreamWriter) -> None:
    """A machine that is gone says nothing: what is not acknowledged in time ends the connection."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SILENCE_S))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def read_frame(reader: asyncio.StreamReader, most: Callable[[], int] = lambda: MAX_CONTROL_BYTES) -> Frame:
    """Raises FrameError for a frame over `most` bytes, IncompleteReadError at the end of the stream.

    `most` is asked when there is a frame: what has been asked for may have grown while it was waited for.
    """
    size, kind, number = HEAD.unpack(await reader.readexactly(HEAD.size))
    if size > (cap := most()):
        raise FrameError(f"frame of {size} bytes, kind {kind}, is over the cap of {cap}")
    return Frame(kind, number, await reader.readexactly(size))


def message(frame: Frame, kind: Kind, of: type[_T]) -> _T:
    """The message of a frame that must be of this kind. Raises FrameError."""
    if frame.kind != kind:
        raise FrameError(f"frame of kind {frame.kind} where {kind.name} ({kind}) is due")
    try:
        return unpack(msgspec.msgpack.Decoder(of), frame.body, MAX_CONTROL_BYTES)
    except WireError as error:
        raise FrameError(f"{kind.name}: {error}") from None


def _ms(seconds: float) -> int:
    return max(0, min(2**32 - 1, round(seconds * 1000)))


_encoder = msgspec.msgpack.Encoder()
