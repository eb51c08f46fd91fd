"""What travels between agent and router. MessagePack over ZeroMQ, and one JSON document over HTTP.

Agent -> routers: PUB frames ``[TOPIC, msgpack(EventBatch)]``. Router -> agent, on a ROUTER/DEALER pair:
``msgpack(Replay | SnapshotRequest)``, answered with a series of ``msgpack(EventBatch | SnapshotPart | ReplayGone)``;
a replay ends with the newest batch (`EventBatch.seq` == `newest`), a snapshot with `SnapshotPart.last`.

Keys are packed little-endian u64, depths u32 (tokens from the start of the sequence to the end of what the key
covers), tiers u8. Page keys and text keys travel alike: a router does not need to tell them apart.
"""

from typing import TypeVar

import msgspec

from trunkline.shared.errors import WireError
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace

WIRE_VERSION = 1
TOPIC = b"trunkline.events"
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_KEYS_PER_EVENT = 65_536


class Stored(msgspec.Struct, array_like=True, tag="stored", frozen=True):
    """Keys whose page became resident in `tier`; parents come before children."""

    keys: bytes
    depths: bytes
    tier: Tier


class Moved(msgspec.Struct, array_like=True, tag="moved", frozen=True):
    """Keys whose page is now in `tier` and no longer where it was."""

    keys: bytes
    tier: Tier


class Removed(msgspec.Struct, array_like=True, tag="removed", frozen=True):
    """Keys whose page is gone from every tier; children come before parents."""

    keys: bytes


class Cleared(msgspec.Struct, array_like=True, tag="cleared", frozen=True):
    """Every key of the node is gone."""


Event = Stored | Moved | Removed | Cleared


class TierLoad(msgspec.Struct, array_like=True, frozen=True):
    """Pages of one tier. `free + resident + in_flight == total`; `cached` of the resident are held by nobody."""

    tier: Tier
    total: int
    free: int
    resident: int
    in_flight: int
    cached: int


class Load(msgspec.Struct, array_like=True, frozen=True):
    """How busy a node is, as it says itself. Rates in tokens per second, smoothed; counters since the epoch began."""

    running: int = 0
    waiting: int = 0
    backlog_tokens: int = 0
    """Prompt tokens accepted, not in the cache, and not yet computed."""
    max_running: int = 0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    utilization: float = 0.0
    """Share of the last seconds in which a step was running, 0 to 1."""
    tiers: tuple[TierLoad, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    false_hits: int = 0


class Finished(msgspec.Struct, array_like=True, frozen=True):
    """What became of one request; the router learns from it. Seconds."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    prefill_s: float


class Digest(msgspec.Struct, array_like=True, frozen=True):
    """Number of keys held after this batch, and the XOR of their mixes (`PrefixIndex.digest`)."""

    count: int
    xor: int


class EventBatch(msgspec.Struct, array_like=True, tag="batch", frozen=True):
    """Numbered from 0 in each epoch, without gaps. Sent at least every heartbeat, events or not."""

    version: int
    node: str
    epoch: int
    seq: int
    events: tuple[Event, ...]
    load: Load
    digest: Digest
    finished: tuple[Finished, ...] = ()
    newest: int = -1
    """In a replay: the sequence number of the last batch that will be replayed. Else -1."""


class Replay(msgspec.Struct, array_like=True, tag="replay", frozen=True):
    """Asks for every batch of `epoch` from `seq` on."""

    version: int
    epoch: int
    seq: int


class ReplayGone(msgspec.Struct, array_like=True, tag="gone", frozen=True):
    """The asked batches are no longer kept, or belong to another epoch: take a snapshot."""

    epoch: int
    oldest: int


class SnapshotRequest(msgspec.Struct, array_like=True, tag="snapshot", frozen=True):
    """Asks for everything the node holds."""

    version: int


class SnapshotPart(msgspec.Struct, array_like=True, tag="part", frozen=True):
    """A part of what the node held right after batch `seq` of `epoch`; parents come before children."""

    epoch: int
    seq: int
    part: int
    last: bool
    keys: bytes
    depths: bytes
    tiers: bytes


Request = Replay | SnapshotRequest
Message = EventBatch | SnapshotPart | ReplayGone


class ServedModel(msgspec.Struct, frozen=True):
    """A model as one agent serves it. `namespace` has no salt. `context` in tokens."""

    name: str
    namespace: Namespace
    context: int


class AgentInfo(msgspec.Struct, frozen=True):
    """``GET /trunkline/info``: who an agent is and where its events are."""

    version: int
    node: str
    epoch: int
    models: tuple[ServedModel, ...]
    page_tokens: int
    text_chunk: int
    events: str
    """ZeroMQ PUB endpoint."""
    replay: str
    """ZeroMQ ROUTER endpoint for replays and snapshots."""
    max_running: int
    pages: int


_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_request_decoder = msgspec.msgpack.Decoder(Request)


def encode(message: Message | Request) -> bytes:
    """One frame. Raises WireError if it is over MAX_FRAME_BYTES."""
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} of {len(frame)} bytes is over the cap of {MAX_FRAME_BYTES}")
    return frame


def decode_message(frame: bytes) -> Message:
    """Raises WireError for anything but a well-formed message of this version."""
    return _decode(_message_decoder, frame)


def decode_request(frame: bytes) -> Request:
    """Raises WireError for anything but a well-formed request of this version."""
    return _decode(_request_decoder, frame)


_T = TypeVar("_T")


def _decode(decoder: msgspec.msgpack.Decoder[_T], frame: bytes) -> _T:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"frame of {len(frame)} bytes is over the cap of {MAX_FRAME_BYTES}")
    try:
        message = decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"frame of {len(frame)} bytes does not decode: {error}") from None
    version = getattr(message, "version", WIRE_VERSION)
    if version != WIRE_VERSION:
        raise WireError(f"peer speaks wire version {version}, this is version {WIRE_VERSION}: upgrade the older one")
    return message
