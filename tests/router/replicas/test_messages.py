"""What routers tell each other: round trips, and hostile frames."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.replicas.messages import (
    MAX_BATCH_BYTES,
    REPLICAS_VERSION,
    Batch,
    Claim,
    Hello,
    NodeShare,
    decode,
    encode,
)
from trunkline.router.scheduler.share import Share
from trunkline.shared.errors import WireError

BATCH = Batch(
    REPLICAS_VERSION, "r1", 7, True, (NodeShare("n", Share(2, 300, 45_000, 100, 0.5)),), (Claim("n", False, bytes(16)),)
)


@pytest.mark.parametrize("message", [BATCH, Hello(REPLICAS_VERSION, "r1")])
def test_round_trip(message: Batch | Hello) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (bytes(MAX_BATCH_BYTES + 1), "over the cap"),
        (encode(msgspec.structs.replace(BATCH, version=99)), "replicas version 99"),
        (encode(msgspec.structs.replace(BATCH, claims=(Claim("n", False, b"123"),))), "whole number of keys"),
        (encode(msgspec.structs.replace(BATCH, shares=(NodeShare("n", Share(running=-1)),))), "does not decode"),
        (encode(msgspec.structs.replace(BATCH, shares=(NodeShare("n", Share(sizes=(1, 2))),))), "does not decode"),
        (encode(msgspec.structs.replace(BATCH, router="x" * 1000)), "does not decode"),
        (encode(BATCH)[:-3], "does not decode"),
    ],
)
def test_a_hostile_frame_is_refused_and_says_why(frame: bytes, what: str) -> None:
    with pytest.raises(WireError, match=what):
        decode(frame)
