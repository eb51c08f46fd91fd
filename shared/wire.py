"""What travels between agent and router: MessagePack over ZeroMQ, and one JSON document over HTTP.

`docs/develop/wire.md` specifies the format, its caps and who sends what when. Keys are packed little-endian u64,
depths u32 (tokens from the start of the sequence to the end of what the key covers), tiers u8. Page keys and text
keys travel alike: a router does not need to tell them apart. What decodes is well formed: sizes agree, numbers are in
range; a decoded message can be applied without another check.
"""

from typing import Annotated, TypeVar

import msgspec

from trunkline.shared.errors import UNDECODABLE, WireError
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.namespace import Namespace

_T = TypeVar("_T")

WIRE_VERSION = 2
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_REQUEST_BYTES = 256
MAX_KEYS = 65_536
"""Keys per event and per snapshot part."""
MAX_NAME = 256
"""Characters of a node's name or a request's id."""
KEY_BYTES, DEPTH_BYTES = 8, 4
DIGEST_BYTES = SUMMARY_PARTITIONS * 16

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Quantity = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
LEAST_RATE = 1e-3
"""Tokens per second; less is as good as none, and what is divided by it would become infinite in the end."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Keys = Annotated[bytes, msgspec.Meta(max_length=MAX_KEYS * KEY_BYTES)]
Depths = Annotated[bytes, msgspec.Meta(max_length=MAX_KEYS * DEPTH_BYTES)]
Tiers = Annotated[bytes, msgspec.Meta(max_length=MAX_KEYS)]
Digests = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
"""Of each partition: number of keys held, and the XOR of their mixes, u64 each (`PrefixIndex.digests`)."""
Partition = Annotated[int, msgspec.Meta(ge=-1, lt=SUMMARY_PARTITIONS)]
"""-1: all of them."""


class Stored(msgspec.Struct, array_like=True, tag="stored", frozen=True):
    """Keys whose page became resident in `tier`; parents come before children."""

    keys: Keys
    depths: Depths
    tier: Tier


class Moved(msgspec.Struct, array_like=True, tag="moved", frozen=True):
    """Keys whose page is now in `tier` and no longer where it was."""

    keys: Keys
    tier: Tier


class Removed(msgspec.Struct, array_like=True, tag="removed", frozen=True):
    """Keys whose page is gone from every tier; children come before parents."""

    keys: Keys


class Cleared(msgspec.Struct, array_like=True, tag="cleared", frozen=True):
    """Every key of the node is gone."""


Event = Stored | Moved | Removed | Cleared


class TierLoad(msgspec.Struct, array_like=True, frozen=True):
    """Pages of one tier. `free + resident + in_flight == total`. Of the resident, `cached` are held by nobody, `leased`
    by other nodes' leases alone, and the others by sequences."""

    tier: Tier
    total: Count
    free: Count
    resident: Count
    in_flight: Count
    cached: Count
    leased: Count = 0
    longest_free: Count = 0
    """Of the free ones, the longest run of neighbours."""


class Load(msgspec.Struct, array_like=True, frozen=True):
    """How busy a node is, as it says itself. Rates in tokens per second, smoothed; counters since the epoch began."""

    running: Count = 0
    waiting: Count = 0
    backlog_tokens: Count = 0
    """Prompt tokens accepted, not in the cache, and not yet computed."""
    max_running: Count = 0
    prefill_rate: Quantity = 0.0
    decode_rate: Quantity = 0.0
    utilization: Quantity = 0.0
    """Share of the last seconds in which a step was running, 0 to 1."""
    tiers: Annotated[tuple[TierLoad, ...], msgspec.Meta(max_length=len(Tier))] = ()
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    output_tokens: Count = 0
    requests: Count = 0
    false_hits: Count = 0
    promote_rate: Quantity = 0.0
    """Tokens whose KV comes from the host tier to the device, per second; 0: there is no host tier."""
    link_rate: Quantity = 0.0
    """Tokens whose KV goes between this node and others, per second and direction; 0: it neither pulls nor lends."""
    pulling_tokens: Count = 0
    """Still to come from other nodes, of pulls under way."""
    lending_tokens: Count = 0
    """Still to go to other nodes, of their pulls under way."""
    step_tokens: Count = 0
    """Tokens that the node computes in one step; 0: it does not say."""
    patience: Quantity = 0.0
    """For so many times its own prefill a prompt lets shorter ones pass; 0: first come, first served."""
    disk_rate: Quantity = 0.0
    """Tokens whose KV comes from disk to the host tier, per second; 0: not measured yet, or there is no disk tier."""
    draining: bool = False
    """The node takes no new requests, and hands on what it holds."""


class Finished(msgspec.Struct, array_like=True, frozen=True):
    """What became of one request; the router learns from it. Seconds."""

    request_id: Name
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    queue_s: Quantity
    prefill_s: Quantity
    promoted_tokens: Count = 0
    """Of the cached ones: brought from the host tier or from disk for this request."""
    promote_s: Quantity = 0.0
    pulled_tokens: Count = 0
    """Of the cached ones: brought from another node for this request."""
    pull_s: Quantity = 0.0
    """From asking the other node until all of them were there, or as many as came."""


class EventBatch(msgspec.Struct, array_like=True, tag="batch", frozen=True):
    """Numbered from 0 in each epoch, without gaps. Sent at least every heartbeat, events or not."""

    version: int
    node: Name
    epoch: Count
    seq: Count
    events: Annotated[tuple[Event, ...], msgspec.Meta(max_length=MAX_KEYS)]
    load: Load
    digest: Digests
    """Of what the node holds after this batch."""
    finished: Annotated[tuple[Finished, ...], msgspec.Meta(max_length=4096)] = ()
    newest: int = -1
    """In an answer to Replay: the sequence number of the last batch of this answer. Else -1."""


class Replay(msgspec.Struct, array_like=True, tag="replay", frozen=True):
    """Asks for the batches of `epoch` from `seq` on; the answer may stop early, ask again for more."""

    version: int
    epoch: Count
    seq: Count


class ReplayGone(msgspec.Struct, array_like=True, tag="gone", frozen=True):
    """The asked batches are not kept, or belong to another epoch: take a snapshot."""

    version: int
    epoch: Count


class SnapshotRequest(msgspec.Struct, array_like=True, tag="snapshot", frozen=True):
    """Asks for everything the node holds, or for one partition of it."""

    version: int
    partition: Partition = -1


class SnapshotPart(msgspec.Struct, array_like=True, tag="part", frozen=True):
    """A part of what the node held right after batch `seq` of `epoch`; parents come before children.

    Parts are numbered from 0 and sent in order; `digest` is of everything that the node held then.
    """

    version: int
    epoch: Count
    seq: Count
    part: Count
    last: bool
    keys: Keys
    depths: Depths
    tiers: Tiers
    digest: Digests
    partition: Partition = -1


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
    """ZeroMQ PUB endpoint. An unspecified host (0.0.0.0) stands for the host that answered."""
    replay: str
    """ZeroMQ ROUTER endpoint for replays and snapshots."""
    max_running: int
    pages: int
    transfer: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    """``host:port`` where other nodes ask for pages; the host as above. Empty: it lends none."""


class _Versioned(msgspec.Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_request_decoder = msgspec.msgpack.Decoder(Request)
_info_decoder = msgspec.json.Decoder(AgentInfo)
_version_decoder = msgspec.json.Decoder(_Versioned)


def encode(message: Message | Request) -> bytes:
    """One frame. Raises WireError if it is over MAX_FRAME_BYTES."""
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"{type(message).__name__} of {len(frame)} bytes is over the cap of {MAX_FRAME_BYTES}")
    return frame


def decode_message(frame: bytes) -> Message:
    """Raises WireError for anything but a well-formed message of this version."""
    message = unpack(_message_decoder, frame, MAX_FRAME_BYTES)
    _check_version(message.version)
    if isinstance(message, EventBatch):
        for event in message.events:
            if isinstance(event, Stored):
                _check_sizes(event.keys, depths=event.depths)
            elif not isinstance(event, Cleared):
                _check_sizes(event.keys)
    elif isinstance(message, SnapshotPart):
        _check_sizes(message.keys, depths=message.depths, tiers=message.tiers)
    return message


def decode_request(frame: bytes) -> Request:
    """Raises WireError for anything but a well-formed request of this version."""
    request = unpack(_request_decoder, frame, MAX_REQUEST_BYTES)
    _check_version(request.version)
    return request


def decode_info(body: bytes) -> AgentInfo | None:
    """An agent's info, None if `body` is not one (some servers answer 200 to any path).

    Raises WireError if it is one of another version, or one that lacks what this version needs.
    """
    try:
        version = _version_decoder.decode(body).version
    except UNDECODABLE:
        return None
    _check_version(version)
    try:
        return _info_decoder.decode(body)
    except UNDECODABLE as error:
        raise WireError(f"agent info of version {version} does not decode: {error}") from None


def unpack(decoder: msgspec.msgpack.Decoder[_T], frame: bytes, cap: int) -> _T:
    """Of any format; its version is for the caller to check. Raises WireError if it is too long or does not decode."""
    if len(frame) > cap:
        raise WireError(f"frame of {len(frame)} bytes is over the cap of {cap}")
    try:
        return decoder.decode(frame)
    except UNDECODABLE as error:
        raise WireError(f"frame of {len(frame)} bytes does not decode: {error}") from None


def _check_version(version: int) -> None:
    if version != WIRE_VERSION:
        raise WireError(f"peer speaks wire version {version}, this is version {WIRE_VERSION}: upgrade the older one")


def _check_sizes(keys: bytes, *, depths: bytes | None = None, tiers: bytes | None = None) -> None:
    count, rest = divmod(len(keys), KEY_BYTES)
    if rest:
        raise WireError(f"{len(keys)} bytes of keys are not a whole number of keys")
    if depths is not None and len(depths) != count * DEPTH_BYTES:
        raise WireError(f"{count} keys come with {len(depths)} bytes of depths")
    if tiers is not None and (len(tiers) != count or tiers.translate(None, _TIERS)):
        raise WireError(f"{count} keys come with {len(tiers)} tiers, not one known tier each")


_TIERS = bytes(Tier)
