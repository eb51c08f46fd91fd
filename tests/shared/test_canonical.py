"""Framing is unambiguous, and chunk ends are where the keys say."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import text_chain
from trunkline.shared.canonical import Canonical, Message, of_chat, of_prompt
from trunkline.shared.errors import RequestError
from trunkline.shared.names import TEXT_CHUNK

roles = st.sampled_from(["system", "user", "assistant", "tool"])
texts = st.one_of(st.text(max_size=20), st.text(alphabet="ab é", min_size=100, max_size=400))
messages = st.lists(st.builds(Message, role=roles, content=texts, name=st.none() | st.text(max_size=3)), max_size=4)


def keys(canonical: Canonical) -> tuple[int, ...]:
    packed = text_chain(7, canonical.frames, canonical.texts, TEXT_CHUNK, canonical.closed)
    return struct.unpack(f"<{len(packed) // 8}Q", packed)


def content(text: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode({"type": "text", "text": text}))]


@given(messages)
def test_one_key_per_boundary_of_a_chat(chat: list[Message]) -> None:
    canonical = of_chat(chat)
    ends = canonical.boundaries()
    assert len(keys(canonical)) == len(ends)
    assert ends == sorted(set(ends))
    sizes = canonical.sizes()
    closed = [end for end in ends if end[1] == sizes[end[0]]]
    assert closed == list(enumerate(sizes))


@given(st.text(max_size=600))
def test_one_key_per_whole_chunk_of_a_prompt(prompt: str) -> None:
    canonical = of_prompt(prompt)
    size = len(prompt.encode()) + 1
    assert canonical.boundaries() == [(0, end) for end in range(TEXT_CHUNK, size + 1, TEXT_CHUNK)]
    assert len(keys(canonical)) == size // TEXT_CHUNK


@given(messages, messages)
def test_chats_share_keys_exactly_as_far_as_their_messages_agree(one: list[Message], other: list[Message]) -> None:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    shared = len(keys(of_chat(one[:common])))
    first, second = keys(of_chat(one)), keys(of_chat(other))
    assert first[:shared] == second[:shared]
    if one != other:
        assert first != second


@given(st.text(min_size=1, max_size=400), st.text(max_size=400), st.text(max_size=400))
def test_a_message_that_goes_on_alike_shares_whole_chunks(head: str, one: str, other: str) -> None:
    first, second = (of_chat([Message("user", head + tail)]) for tail in (one, other))
    whole = (len(head.encode()) + len(first.frames[0])) // TEXT_CHUNK
    # The chunk that ends a message is marked: it may end at a whole chunk's end here, and not there.
    shared = max(0, whole - 1)
    assert keys(first)[:shared] == keys(second)[:shared]


@given(st.text(max_size=300), st.text(max_size=300))
def test_where_a_message_ends_matters(one: str, other: str) -> None:
    joined = of_chat([Message("user", one + other)])
    split = of_chat([Message("user", one), Message("user", other)])
    parts = of_chat([Message("user", content(one) + content(other))])
    assert len({keys(joined), keys(split), keys(parts)}) == 3


def test_a_string_is_one_text_part() -> None:
    assert of_chat([Message("user", "hi")]) == of_chat([Message("user", content("hi"))])
    assert of_chat([Message("user", None)]) == of_chat([Message("user", [])]) == of_chat([Message("user", "")])


def test_everything_a_template_sees_is_told_apart() -> None:
    base = Message("user", "hi")
    variants = [
        of_chat([base]),
        of_chat([Message("system", "hi")]),
        of_chat([Message("user", "hi", name="n")]),
        of_chat([Message("user", "hi", name="")]),
        of_chat([Message("user", "hi", tool_call_id="")]),
        of_chat([Message("user", "hi", tool_call_id="n")]),
        of_chat([Message("user", "hi", tool_calls=msgspec.Raw(b"n"))]),
        of_chat([base], tools=b"[]"),
        of_chat([base], template_kwargs=b"[]"),
        of_prompt("hi"),
    ]
    assert len({(tuple(each.frames), tuple(each.texts), each.closed) for each in variants}) == len(variants)


def test_frames_are_what_comes_before_the_text() -> None:
    canonical = of_chat([Message("user", content("one") + content("two"), name="n")], tools=b"[]")
    assert canonical.texts == ["", "one", "two"]
    assert len(canonical.frames) == 3
    assert of_prompt("three").texts == ["three"]
    assert of_prompt("drei \xfc").texts == ["drei \xfc".encode()]


def test_a_part_of_another_kind_is_its_raw_json() -> None:
    raw = b'{"type":"image_url","image_url":{"url":"x"}}'
    framed = of_chat([Message("user", [msgspec.Raw(raw)])])
    assert framed.texts == [raw]


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b"3", 422), (b"{}", 400), (b'{"type":1}', 422), (b'{"type":"text","text":5}', 422)]
    + [(b'{"type":"text","text":"\xff"}', 400), (b'{"type":"text","text":"\\ud800"}', 400)],
)
def test_malformed_parts_are_named(raw: bytes, status: int) -> None:
    with pytest.raises(RequestError, match=r"messages\.1\.content\.1") as caught:
        of_chat([Message("user", "hi"), Message("user", [*content("one"), msgspec.Raw(raw)])])
    assert caught.value.status == status
    assert str(caught.value.param).startswith("messages.1.content.1")


def test_half_a_surrogate_pair_is_named() -> None:
    with pytest.raises(RequestError, match="prompt\\.3"):
        of_prompt("\ud800", "prompt.3")
    with pytest.raises(RequestError, match="messages\\.0"):
        of_chat([Message("user", "\ud800")])
