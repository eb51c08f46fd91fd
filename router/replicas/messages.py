"""What routers tell each other, through a channel in Redis: MessagePack, as `shared/wire.py` has it.

A router tells its whole account of a node, not what changed in it: what is lost or repeated does no harm, and whoever
comes later knows everything after one whole batch. `docs/develop/replicas.md` tells who sends what when.
"""

from typing import Annotated

import msgspec

from trunkline.router.scheduler.share import Share
from trunkline.shared.errors import WireError
from trunkline.shared.wire import KEY_BYTES, Count, Keys, Name, unpack

REPLICAS_VERSION = 1
MAX_BATCH_BYTES = 4 << 20
MAX_SHARES = 4096
MAX_CLAIMS = 4096


class NodeShare(msgspec.Struct, array_like=True, frozen=True):
    node: Name
    """`Node.identity`."""
    share: Share


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """What a node will hold because of what was just placed there: a sample of a chain (`scheduler/claims.py`)."""

    node: Name
    assumed: bool
    keys: Keys


class Batch(msgspec.Struct, array_like=True, tag="batch", frozen=True):
    """Numbered from 0 for each router. `whole`: nodes that are not among the shares have none."""

    version: int
    router: Name
    seq: Count
    whole: bool
    shares: Annotated[tuple[NodeShare, ...], msgspec.Meta(max_length=MAX_SHARES)]
    claims: Annotated[tuple[Claim, ...], msgspec.Meta(max_length=MAX_CLAIMS)]


class Hello(msgspec.Struct, array_like=True, tag="hello", frozen=True):
    """A router that begins to listen asks everyone for a whole batch."""

    version: int
    router: Name


Message = Batch | Hello

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(frame: bytes) -> Message:
    """Raises WireError for anything but a well-formed message of this version."""
    message = unpack(_decoder, frame, MAX_BATCH_BYTES)
    if message.version != REPLICAS_VERSION:
        raise WireError(f"a router speaks replicas version {message.version}, this is {REPLICAS_VERSION}")
    if isinstance(message, Batch) and any(len(claim.keys) % KEY_BYTES for claim in message.claims):
        raise WireError(f"a claim of router {message.router!r} is not a whole number of keys")
    return message
