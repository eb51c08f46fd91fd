"""Frames and messages of the control channel: what is sent comes back, what is junk is refused."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.tiers import NAMESPACE
from trunkline.agent.transfer import messages
from trunkline.agent.transfer.errors import FrameError
from trunkline.agent.transfer.messages import (
    HEAD,
    MAX_CONTROL_BYTES,
    MAX_LOCATE_BYTES,
    Answer,
    Challenge,
    Frame,
    Hello,
    Kind,
    Locate,
    Refused,
    Welcome,
)
from trunkline.agent.transfer.offer import Offer
from trunkline.kernels.core import MAX_CHAIN_PAGES, MAX_RUNGS

KINDS: dict[Kind, type[msgspec.Struct]] = {
    Kind.CHALLENGE: Challenge,
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.REFUSED: Refused,
}
MESSAGES = [
    (Kind.CHALLENGE, Challenge(1, bytes(range(32)))),
    (Kind.HELLO, Hello(1, "reader", bytes(32), bytes(range(32)), NAMESPACE)),
    (Kind.WELCOME, Welcome("holder", bytes(32), Offer(7, 4096, "127.0.0.1:1", "memory"))),
    (Kind.REFUSED, Refused("its KV is of another layout")),
]


def received(data: bytes, cap: int) -> Frame:
    async def read() -> Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await messages.read_frame(reader, lambda: cap)

    return asyncio.run(read())


@pytest.mark.parametrize(("kind", "sent"), MESSAGES)
def test_what_is_sent_comes_back(kind: Kind, sent: msgspec.Struct) -> None:
    frame = received(messages.frame(kind, sent) + b"more", MAX_CONTROL_BYTES)
    assert messages.message(frame, kind, KINDS[kind]) == sent


@pytest.mark.parametrize(("kind", "sent"), MESSAGES)
def test_one_message_is_not_another(kind: Kind, sent: msgspec.Struct) -> None:
    frame = received(messages.frame(kind, sent), MAX_CONTROL_BYTES)
    for other, of in KINDS.items():
        if other is not kind:
            with pytest.raises(FrameError, match=f"kind {int(kind)} where {other.name}"):
                messages.message(frame, other, of)


@given(st.sampled_from(MESSAGES), st.data())
def test_damage_is_a_frame_error_or_another_message(sent: tuple[Kind, msgspec.Struct], data: st.DataObject) -> None:
    kind, of = sent[0], KINDS[sent[0]]
    raw = bytearray(messages.frame(*sent))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = messages.message(received(bytes(raw), MAX_CONTROL_BYTES), kind, of)
    except (FrameError, EOFError):
        return
    assert isinstance(message, of)


@given(st.binary(max_size=100), st.integers(0, 64))
def test_junk_is_a_frame_or_an_error(junk: bytes, cap: int) -> None:
    try:
        frame = received(junk, cap)
    except (FrameError, EOFError):
        return
    assert len(frame.body) <= cap
    assert junk.startswith(HEAD.pack(len(frame.body), frame.kind, frame.number) + frame.body)
    for decode in (Locate.decode, lambda body: Answer.decode(body, b"")):
        with pytest.raises(FrameError):
            decode(frame.body)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1000])
def test_what_a_holder_has_is_found_to_within_a_quarter_of_what_it_lacks(count: int) -> None:
    chosen = messages.rungs(list(range(count)), count)
    assert [key for _, key in chosen] == [pages - 1 for pages, _ in chosen]
    depths = [pages for pages, _ in chosen]
    assert depths == sorted(set(depths), reverse=True)
    for has in range(depths[-1], count + 1):
        found = next(pages for pages in depths if pages <= has)
        assert has - found <= (count - has) / 4


def test_the_longest_question_fits() -> None:
    chosen = messages.rungs(range(MAX_CHAIN_PAGES), MAX_CHAIN_PAGES)
    assert len(chosen) <= MAX_RUNGS
    question = Locate(bytes(32), 0, MAX_CHAIN_PAGES, 1e9, 1e9, chosen)
    body = question.encode()
    assert len(body) <= MAX_LOCATE_BYTES
    asked = Locate.decode(body)
    assert (asked.count, asked.rungs, asked.wait_s) == (MAX_CHAIN_PAGES, chosen, (2**32 - 1) / 1000)


@pytest.mark.parametrize(
    ("offered", "there"),
    [
        ("0.0.0.0:5", "10.0.0.7:5"),
        ("[::]:5", "10.0.0.7:5"),
        ("127.0.0.1:5", "127.0.0.1:5"),
        ("", ""),
    ],
)
def test_an_unspecified_host_is_the_one_that_was_asked(offered: str, there: str) -> None:
    assert Offer(1, 4096, offered, "memory").at("10.0.0.7") == Offer(1, 4096, there, "memory")
