"""What decodes is well formed; whatever else comes is a WireError with its reason."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.shared import wire
from trunkline.shared.errors import WireError
from trunkline.shared.names import SUMMARY_PARTITIONS, Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import (
    DIGEST_BYTES,
    MAX_FRAME_BYTES,
    MAX_KEYS,
    WIRE_VERSION,
    AgentInfo,
    Cleared,
    EventBatch,
    Finished,
    Load,
    Message,
    Moved,
    Removed,
    Replay,
    ReplayGone,
    Request,
    ServedModel,
    SnapshotPart,
    SnapshotRequest,
    Stored,
    TierLoad,
    decode_info,
    decode_message,
    decode_request,
    encode,
)

counts = st.integers(0, 2**63 - 1)
quantities = st.floats(0, 1e15)
tiers = st.sampled_from(Tier)
sizes = st.integers(0, 40)


def packed(count: int, item: int) -> bytes:
    return bytes(index % 251 for index in range(count * item))


events = st.one_of(
    st.builds(lambda n, tier: Stored(packed(n, 8), packed(n, 4), tier), sizes, tiers),
    st.builds(lambda n, tier: Moved(packed(n, 8), tier), sizes, tiers),
    st.builds(lambda n: Removed(packed(n, 8)), sizes),
    st.builds(Cleared),
)
loads = st.builds(
    Load,
    running=counts,
    waiting=counts,
    prefill_rate=quantities,
    utilization=quantities,
    tiers=st.lists(st.builds(TierLoad, tiers, counts, counts, counts, counts, counts, counts), max_size=3).map(tuple),
)
digests = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
finished = st.builds(Finished, st.text(max_size=256), counts, counts, counts, quantities, quantities)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        EventBatch,
        st.just(WIRE_VERSION),
        st.text(max_size=256),
        counts,
        counts,
        st.lists(events, max_size=6).map(tuple),
        loads,
        digests,
        st.lists(finished, max_size=3).map(tuple),
        st.integers(-1, 2**63 - 1),
    ),
    st.builds(
        lambda n, epoch, seq, part, last, digest, partition: SnapshotPart(
            WIRE_VERSION, epoch, seq, part, last, packed(n, 8), packed(n, 4), bytes(n), digest, partition
        ),
        sizes,
        counts,
        counts,
        counts,
        st.booleans(),
        digests,
        st.integers(-1, SUMMARY_PARTITIONS - 1),
    ),
    st.builds(ReplayGone, st.just(WIRE_VERSION), counts),
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(Replay, st.just(WIRE_VERSION), counts, counts),
    st.builds(SnapshotRequest, st.just(WIRE_VERSION), st.integers(-1, SUMMARY_PARTITIONS - 1)),
)
BATCH = EventBatch(WIRE_VERSION, "n", 1, 2, (), Load(), bytes(DIGEST_BYTES))
PART = SnapshotPart(WIRE_VERSION, 1, 2, 0, True, bytes(16), bytes(8), bytes(2), bytes(DIGEST_BYTES))


def changed(message: msgspec.Struct, **fields: Any) -> bytes:
    """A frame as a peer might send it: fields are not checked."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, **fields))


@given(messages)
def test_messages_come_back(message: Message) -> None:
    assert decode_message(encode(message)) == message


@given(requests)
def test_requests_come_back(request: Request) -> None:
    assert decode_request(encode(request)) == request


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error(frame: bytes) -> None:
    for decode in (decode_message, decode_request):
        with pytest.raises(WireError):
            decode(frame)


@given(messages, st.data())
def test_a_damaged_frame_decodes_well_formed_or_not_at_all(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_message(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    except WireError:
        return
    assert decode_message(encode(decoded)) == decoded


HOSTILE = {
    "odd keys": changed(BATCH, events=(Removed(bytes(7)),)),
    "more depths than keys": changed(BATCH, events=(Stored(bytes(8), bytes(8), Tier.DEVICE),)),
    "too many keys": changed(BATCH, events=(Removed(bytes(8 * (MAX_KEYS + 1))),)),
    "too many events": changed(BATCH, events=(Cleared(),) * (MAX_KEYS + 1)),
    "unknown tier": changed(BATCH, events=(Moved(bytes(8), 3),)),  # type: ignore[arg-type]
    "unknown event": msgspec.msgpack.encode(["batch", WIRE_VERSION, "n", 1, 2, [["stolen", b""]], [], [0, 0]]),
    "unknown message": msgspec.msgpack.encode(["batches", WIRE_VERSION]),
    "negative sequence": changed(BATCH, seq=-1),
    "epoch over 63 bits": changed(BATCH, epoch=2**63),
    "load that is no number": changed(BATCH, load=Load(prefill_rate=float("nan"))),
    "load without end": changed(BATCH, load=Load(utilization=float("inf"))),
    "negative load": changed(BATCH, load=Load(running=-5)),
    "a name of a megabyte": changed(BATCH, node="n" * 1_000_000),
    "depths missing": changed(PART, depths=b""),
    "tiers missing": changed(PART, tiers=b""),
    "tier out of range": changed(PART, tiers=b"\x00\x07"),
    "deep nesting": b"\x91" * 100_000,
    "a billion elements": b"\xdd\x3f\xff\xff\xff",
    "a request": encode(SnapshotRequest(WIRE_VERSION)),
    "nothing": b"",
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_messages(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode_message(frame)


def test_frames_over_the_cap_are_not_sent_and_not_decoded() -> None:
    huge = msgspec.structs.replace(BATCH, events=(Removed(bytes(MAX_FRAME_BYTES)),))
    with pytest.raises(WireError, match=str(MAX_FRAME_BYTES)):
        encode(huge)
    with pytest.raises(WireError, match="cap"):
        decode_message(bytes(MAX_FRAME_BYTES + 1))
    with pytest.raises(WireError, match="cap"):
        decode_request(bytes(wire.MAX_REQUEST_BYTES + 1))


@pytest.mark.parametrize("version", [0, WIRE_VERSION + 1, 99])
def test_another_version_is_named_beside_ours(version: int) -> None:
    expected = f"version {version}, this is version {WIRE_VERSION}"
    with pytest.raises(WireError, match=expected):
        decode_message(changed(BATCH, version=version))
    with pytest.raises(WireError, match=expected):
        decode_request(changed(SnapshotRequest(version)))
    with pytest.raises(WireError, match=expected):
        decode_info(b'{"version": %d, "nothing": "else fits"}' % version)


def test_fields_of_a_later_version_are_skipped() -> None:
    raw = msgspec.msgpack.decode(encode(BATCH))
    assert decode_message(msgspec.msgpack.encode([*raw, "later"])) == BATCH


def test_info_comes_back() -> None:
    info = AgentInfo(
        version=WIRE_VERSION,
        node="n",
        epoch=5,
        models=(ServedModel("m", Namespace("f", "float16", "16x1x2x1x8"), 2048),),
        page_tokens=16,
        text_chunk=128,
        events="tcp://127.0.0.1:1",
        replay="tcp://127.0.0.1:2",
        max_running=4,
        pages=100,
    )
    assert decode_info(msgspec.json.encode(info)) == info


@pytest.mark.parametrize(
    "body",
    [b"", b"OK\n", b"[]", b"{}", b'{"version": "two"}', b"\xff", b"[" * 5000, b'{"x":' + b"[" * 9999, b'"\xff"'],
)
def test_what_is_no_info(body: bytes) -> None:
    assert decode_info(body) is None


def test_info_that_lacks_something_is_named() -> None:
    with pytest.raises(WireError, match="node"):
        decode_info(b'{"version": %d}' % WIRE_VERSION)
