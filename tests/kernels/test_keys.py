"""Key chains against xxhash, and against shared.canonical's boundaries."""

import threading
from array import array

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels import core
from trunkline.kernels.core import PAGE_TOKENS, SEGMENT_END, hash64, page_chain, text_chain
from trunkline.shared.canonical import Canonical
from trunkline.shared.names import PAGE_TOKENS as SHARED_PAGE_TOKENS
from trunkline.shared.names import TEXT_CHUNK

seeds = st.integers(0, 2**64 - 1)
token_ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5 * PAGE_TOKENS)
segments = st.lists(st.binary(max_size=3 * TEXT_CHUNK), max_size=5)


def page_chain_model(seed: int, tokens: list[int]) -> list[int]:
    keys = []
    for start in range(0, len(tokens) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
        page = array("i", tokens[start : start + PAGE_TOKENS]).tobytes()
        seed = xxhash.xxh3_64_intdigest(page, seed)
        keys.append(seed)
    return keys


def text_chain_model(seed: int, segments: list[bytes], chunk: int, closed: bool) -> list[int]:
    keys = []
    for segment in segments:
        for start in range(0, len(segment), chunk):
            piece = segment[start : start + chunk]
            last = start + chunk >= len(segment)
            if last and not closed and len(piece) < chunk:
                continue
            seed = xxhash.xxh3_64_intdigest(piece, seed ^ SEGMENT_END if last and closed else seed)
            keys.append(seed)
    return keys


def unpack(keys: bytes) -> list[int]:
    return array("Q", keys).tolist()


def test_the_module_exports_what_it_says() -> None:
    assert all(hasattr(core, name) for name in core.__all__)
    assert PAGE_TOKENS == SHARED_PAGE_TOKENS


@given(st.binary(max_size=600), seeds)
def test_hash64_is_xxh3(data: bytes, seed: int) -> None:
    assert hash64(data, seed) == xxhash.xxh3_64_intdigest(data, seed)
    assert hash64(data) == xxhash.xxh3_64_intdigest(data)


@given(seeds, token_ids)
def test_page_chain(seed: int, tokens: list[int]) -> None:
    assert unpack(page_chain(seed, array("i", tokens))) == page_chain_model(seed, tokens)


@given(seeds, token_ids, st.integers(0, 4))
def test_a_page_chain_can_be_continued(seed: int, tokens: list[int], pages: int) -> None:
    whole = page_chain(seed, array("i", tokens))
    head = page_chain(seed, array("i", tokens[: pages * PAGE_TOKENS]))
    after = array("Q", head)[-1] if head else seed
    assert head + page_chain(after, array("i", tokens[pages * PAGE_TOKENS :])) == whole


@given(seeds, segments, st.integers(1, 2 * TEXT_CHUNK), st.booleans())
def test_text_chain(seed: int, segments: list[bytes], chunk: int, closed: bool) -> None:
    expected = text_chain_model(seed, segments, chunk, closed)
    assert unpack(text_chain(seed, [b""] * len(segments), segments, chunk, closed)) == expected
    assert unpack(text_chain(seed, segments, [b""] * len(segments), chunk, closed)) == expected


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300) | st.text(max_size=300)), max_size=4),
    st.integers(1, 2 * TEXT_CHUNK),
    st.booleans(),
)
def test_a_segment_is_its_frame_and_its_text(parts: list[tuple[bytes, bytes | str]], chunk: int, closed: bool) -> None:
    frames, texts = [frame for frame, _ in parts], [text for _, text in parts]
    joined = [frame + (text.encode() if isinstance(text, str) else text) for frame, text in parts]
    assert unpack(text_chain(5, frames, texts, chunk, closed)) == text_chain_model(5, joined, chunk, closed)


@given(segments, st.booleans())
def test_a_text_chain_has_one_key_per_boundary(segments: list[bytes], closed: bool) -> None:
    frames = [b"frame"] * len(segments)
    boundaries = Canonical(frames, list(segments), closed).boundaries()
    assert len(unpack(text_chain(3, frames, segments, TEXT_CHUNK, closed))) == len(boundaries)


def test_closed_segments_that_join_to_the_same_text_differ() -> None:
    chains = {
        text_chain(1, [b""] * len(parts), parts, 4, True)[-8:] for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"])
    }
    assert len(chains) == 3


TOKENS = list(range(1, 2 * PAGE_TOKENS + 5))
EXPECTED = page_chain_model(7, TOKENS)


@pytest.mark.parametrize(
    "tokens",
    [
        array("i", TOKENS),
        array("I", TOKENS),
        array("i", TOKENS).tobytes(),
        bytearray(array("i", TOKENS).tobytes()),
        memoryview(array("i", TOKENS)),
        memoryview(b"pad!" + array("i", TOKENS).tobytes())[4:],
        np.array(TOKENS, np.int32),
        np.array([0, *TOKENS], np.uint32)[1:],
        np.array(TOKENS, "<i4").reshape(2, -1),
        np.frombuffer(b"x" + array("i", TOKENS).tobytes(), np.uint8)[1:],
    ],
    ids=lambda value: type(value).__name__,
)
def test_tokens_come_in_any_contiguous_buffer(tokens: object) -> None:
    assert unpack(page_chain(7, tokens)) == EXPECTED


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        (b"abc", ValueError),
        (array("q", TOKENS), ValueError),
        (array("h", TOKENS), ValueError),
        (array("f", TOKENS), ValueError),
        (np.array(TOKENS, ">i4"), ValueError),
        (np.array(TOKENS, np.int32)[::2], ValueError),
        (np.asfortranarray(np.zeros((16, 16), np.int32)), ValueError),
        (memoryview(array("i", TOKENS))[::-1], ValueError),
        (TOKENS, TypeError),
        ("text", TypeError),
        (None, TypeError),
    ],
)
def test_other_tokens_are_refused(tokens: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        page_chain(7, tokens)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_a_u64(seed: int) -> None:
    for call in (lambda: hash64(b"", seed), lambda: page_chain(seed, b""), lambda: text_chain(seed, [], [], 1, True)):
        with pytest.raises(OverflowError):
            call()


def test_a_chunk_has_bytes() -> None:
    with pytest.raises(ValueError, match="chunk is 0"):
        text_chain(0, [b""], [b"abc"], 0, False)
    with pytest.raises(OverflowError):
        text_chain(0, [b""], [b"abc"], -1, False)


def test_a_text_has_a_frame_and_is_bytes_or_unicode() -> None:
    for frames, texts in (([b""], [1]), (["abc"], [b""])):
        with pytest.raises(TypeError):
            text_chain(0, frames, texts, 4, False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 frames, but 0 texts"):
        text_chain(0, [b""], [], 4, False)
    with pytest.raises(UnicodeEncodeError):
        text_chain(0, [b""], ["\ud800"], 4, False)


def test_buffers_are_given_back() -> None:
    tokens = bytearray(64)
    page_chain(0, tokens)
    tokens.append(0)
    with pytest.raises(ValueError, match="65 bytes"):
        page_chain(0, tokens)
    tokens.append(0)


def test_long_inputs_hash_alike_in_many_threads() -> None:
    tokens = bytes(range(256)) * 8192
    expected = page_chain(5, tokens), hash64(tokens, 5), text_chain(5, [b""], [tokens], 100, True)
    results = []

    def work() -> None:
        results.append((page_chain(5, tokens), hash64(tokens, 5), text_chain(5, [b""], [tokens], 100, True)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [expected] * 4
