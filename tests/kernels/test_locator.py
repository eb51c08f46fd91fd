"""The page locator's messages against a short model, and against whoever sends something else."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import (
    MAX_CHAIN_PAGES,
    MAX_RUNGS,
    NOT_LENT,
    decode_locate,
    decode_located,
    encode_locate,
    encode_located,
)

Place = tuple[int, int, int]
U32 = st.integers(0, 2**32 - 1)
NAMESPACE = bytes(range(32))
ABSENT: Place = (NOT_LENT, 0, 0)


@st.composite
def places(draw: st.DrawFn) -> list[Place]:
    """Runs of all lengths, with holes."""
    found: list[Place] = []
    for _ in range(draw(st.integers(0, 6))):
        tier, slot, generation = draw(st.integers(0, 1)), draw(U32), draw(U32)
        length = draw(st.integers(1, 40))
        found += [(tier, (slot + at) % 2**32, generation) for at in range(length)]
        found += [ABSENT] * draw(st.integers(0, 2))
    return found


def packed(rows: list[Place]) -> bytes:
    return b"".join(struct.pack("<BII", *row) for row in rows)


def unpacked(raw: bytes) -> list[Place]:
    return list(struct.iter_unpack("<BII", raw))


def token_ids(pages: int) -> bytes:
    return struct.pack(f"<{pages * 16}i", *range(pages * 16))


def read(message: bytes) -> tuple[int, int, int, int, int, list[Place], bytes]:
    """What docs/develop/locator.md says, in the fewest lines."""
    magic, first, epoch, count, held, lease, segments, size = struct.unpack_from("<4sIQIIIII", message)
    assert magic == b"TLA\x01"
    sealed = 36 + size
    assert struct.unpack_from("<Q", message, sealed) == (xxhash.xxh3_64_intdigest(message[:sealed]),)
    bitmap = int.from_bytes(message[36 : 36 + (count + 7) // 8], "little")
    at, lent = 36 + (count + 7) // 8, list[Place]()
    for _ in range(segments):
        tier, slot_bits, generation_bits, _, pages, slot, generation = struct.unpack_from("<BBBBIII", message, at)
        at += 16
        columns = []
        for bits in (slot_bits, generation_bits):
            size = (pages * bits + 7) // 8
            number, at = int.from_bytes(message[at : at + size], "little"), at + size
            columns.append([number >> bits * index & ((1 << bits) - 1) for index in range(pages)])
        slots = columns[0] if slot_bits else range(pages)
        lent += [(tier, slot + s, generation + g) for s, g in zip(slots, columns[1], strict=True)]
    assert at == sealed
    rows = [lent.pop(0) if bitmap >> page & 1 else ABSENT for page in range(count)]
    assert not lent
    return epoch, first, count, held, lease, rows, message[sealed + 8 :]


@given(places(), st.integers(0, 50), st.integers(0, 2**64 - 1), U32)
def test_an_answer_is_what_the_specification_says(rows: list[Place], first: int, epoch: int, lease: int) -> None:
    pages = first + len(rows)
    tokens = token_ids(pages) if rows else b""
    message = encode_located(epoch, first, pages + 1, lease, packed(rows)) + tokens
    assert read(message) == (epoch, first, len(rows), pages + 1, lease, rows, tokens)
    *numbers, descriptors = decode_located(message, tokens)
    assert numbers == [epoch, first, pages + 1, lease, len(rows)]
    assert unpacked(descriptors) == rows


@given(places(), st.integers(0, 20), st.data())
def test_no_page_is_given_out_from_the_first_on_whose_tokens_differ(
    rows: list[Place], first: int, data: st.DataObject
) -> None:
    tokens = token_ids(first + len(rows)) if rows else b""
    message = encode_located(1, first, first + len(rows), 1, packed(rows)) + tokens
    ours = bytearray(tokens + token_ids(1))
    at = data.draw(st.integers(0, len(ours) - 1))
    ours[at] ^= 1 << data.draw(st.integers(0, 7))
    *_, described, descriptors = decode_located(message, bytes(ours))
    assert described == len(rows)
    assert unpacked(descriptors) == rows[: max(0, at // 64 - first)]


@given(st.lists(st.integers(1, MAX_CHAIN_PAGES), min_size=1, max_size=MAX_RUNGS, unique=True), U32, U32, st.data())
def test_a_request_comes_back(depths: list[int], wait: int, lease: int, data: st.DataObject) -> None:
    rungs = [(depth, data.draw(st.integers(0, 2**64 - 1))) for depth in sorted(depths, reverse=True)]
    count = rungs[0][0]
    first = data.draw(st.integers(0, count - 1))
    message = encode_locate(NAMESPACE, first, count, wait, lease, rungs)
    body = struct.pack("<4sIIIII", b"TLQ\x01", first, count, wait, lease, len(rungs)) + NAMESPACE
    body += b"".join(struct.pack("<IQ", *rung) for rung in rungs)
    assert message == body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    assert decode_locate(message) == (NAMESPACE, first, count, wait, lease, rungs)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((NAMESPACE, 0, 0, 1, 1, [(1, 1)]), "count"),
        ((NAMESPACE, 0, MAX_CHAIN_PAGES + 1, 1, 1, [(1, 1)]), "count"),
        ((NAMESPACE, 5, 5, 1, 1, [(1, 1)]), "first"),
        ((NAMESPACE, 0, 5, 1, 1, []), "rungs"),
        ((NAMESPACE, 0, 5, 1, 1, [(6, 1)]), "depth"),
        ((NAMESPACE, 0, 5, 1, 1, [(3, 1), (3, 2)]), "depth"),
        ((NAMESPACE, 0, 5, 1, 1, [(0, 1)]), "depth"),
        ((NAMESPACE, 0, 99, 1, 1, [(n, n) for n in range(MAX_RUNGS + 1, 0, -1)]), "rungs"),
    ],
)
def test_a_request_that_makes_no_sense_is_not_made(arguments: tuple[object, ...], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        encode_locate(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((1, MAX_CHAIN_PAGES, MAX_CHAIN_PAGES + 1, 1, packed([(1, 0, 0)])), "descriptors"),
        ((1, 0, 1, 1, packed([(1, 0, 0)])[:-1]), "descriptors"),
        ((1, 0, 0, 1, packed([(1, 0, 0)])), "held"),
        ((1, 0, 1, 1, packed([(2, 0, 0)])), "tier"),
    ],
)
def test_an_answer_that_makes_no_sense_is_not_made(arguments: tuple[object, ...], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        encode_located(*arguments)  # type: ignore[arg-type]


def test_an_answer_about_more_pages_than_the_reader_has_is_refused() -> None:
    message = encode_located(1, 0, 2, 1, packed([(1, 0, 0), (1, 1, 0)])) + token_ids(2)
    with pytest.raises(ValueError, match="pages: 2"):
        decode_located(message, token_ids(1))


@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_junk_is_refused(junk: bytes, ours: bool, sealed: bool) -> None:
    for magic, decode in ((b"TLQ\x01", decode_locate), (b"TLA\x01", lambda message: decode_located(message, b""))):
        body = magic + junk if ours else junk
        message = body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") if sealed else body
        try:
            decode(message)  # type: ignore[operator]
        except ValueError as error:
            assert str(error)  # noqa: PT017 - what is no error must be a message that was forged well
        else:
            assert ours
            assert sealed


def test_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="version 1"):
        decode_locate(b"TLQ\x02" + bytes(100))
