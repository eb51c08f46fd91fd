"""What of a head travels on, and that a head is only taken for another one if a parser would read it alike."""

import httptools
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.head import Headers, Heads, Memory, cut, request_head, response_fields

TOKEN = st.text("abcXYZ-_1", min_size=1, max_size=8).map(str.encode)
NAME = TOKEN | st.sampled_from([b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"transfer-encoding", b"host"])
VALUE = st.text("ab 0123456789:,\t", max_size=8).map(str.encode) | st.integers(0, 10**17).map(b"%d".__mod__)
LINE = st.builds(lambda name, gap, value: name + b":" + gap + value, NAME, st.sampled_from([b"", b" ", b"  "]), VALUE)
END = st.sampled_from([b"\r\n\r\n", b"\n\n", b"\r\n\n", b""])


class Parsed:
    """A request's head as the parser reads it."""

    def __init__(self, data: bytes) -> None:
        self.headers: Headers = []
        self.complete = False
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except httptools.HttpParserError:
            self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


@given(st.lists(LINE, max_size=5), END, st.integers(0, 10**14), st.lists(LINE, max_size=2))
def test_a_head_that_is_taken_for_another_is_read_like_it(
    lines: list[bytes], end: bytes, size: int, others: list[bytes]
) -> None:
    raw = b"\r\n".join([b"POST / HTTP/1.1", *lines]) + end
    parsed, parts = Parsed(raw), cut(raw)
    memory: Memory[bytes] = Memory()
    assert Heads(memory).recall(raw) is None
    if not parsed.complete or parts is None:
        return
    before, number, after = parts
    assert before + number + after == raw
    assert int(dict(parsed.headers)[b"content-length"]) == int(number)
    fresh, used = Heads(memory), Heads(memory)
    assert fresh.recall(raw + b"body") is None
    key = fresh.unknown()
    assert key is not None
    assert fresh.unknown() is None
    memory.learn(key, b"known")
    # Known are all heads that differ in the number alone, on a connection where one came before and on another.
    other = before + b"%d" % size + after
    assert used.recall(raw) == (b"known", int(number), len(raw))
    assert used.recall(other + b"body") == fresh.recall(other) == (b"known", size, len(other))
    again = Parsed(other)
    assert again.complete
    assert [pair if pair[0] != b"content-length" else b"%d" % int(number) for pair in parsed.headers] == [
        pair if pair[0] != b"content-length" else b"%d" % int(number) for pair in again.headers
    ]
    # And no other ones.
    third = b"\r\n".join([b"POST / HTTP/1.1", *others, *lines]) + end
    for wrong in (third, raw[:-1], before + after, before + b"-1" + after, before + b"1" * 16 + after):
        found = used.recall(wrong)
        assert found is None or (wrong == third and cut(third) is not None and not others)


def test_what_is_no_whole_head_with_a_length_is_not_cut() -> None:
    for raw in (
        b"",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\n\r\ncontent-length: 3\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: \r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -3\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1234567890123456\r\n\r\n",
        b"POST / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\ncontent-length: 3\r\n\r\n",
    ):
        assert cut(raw) is None


def test_of_a_request_only_end_to_end_headers_travel_on() -> None:
    headers = [
        (b"host", b"a"),
        (b"accept", b"x"),
        (b"connection", b"Keep-Alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"x-trunkline-salt", b"ff"),
        (b"authorization", b"Bearer k"),
        (b"x-request-id", b"mine"),
        (b"content-length", b"3"),
        (b"accept", b"y"),
    ]
    head = request_head(b"/v1", headers)
    assert head.fields == b"accept: x\r\naccept: y\r\n"
    assert (head.authorization, head.request_id) == (b"Bearer k", "mine")


def test_a_request_id_that_cannot_be_used_is_none() -> None:
    for value in (b"x" * 129, b"\xe9"):
        assert request_head(b"/", [(b"x-request-id", value)]).request_id == ""


def test_of_a_response_framing_travels_on() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: a\r\nKeep-Alive: x\r\nConnection: keep-alive\r\nX-Trunkline-Node: b\r\n"
        b"Transfer-Encoding: chunked\r\nX-Request-Id: c\r\nte: d\r\ntest: e"
    )
    assert response_fields(head, unframed=False) == b"\r\nContent-Type: a\r\nTransfer-Encoding: chunked\r\ntest: e"
    assert response_fields(head, unframed=True) == b"\r\nContent-Type: a\r\ntest: e"


def test_memory_is_bounded() -> None:
    memory: Memory[int] = Memory()
    for number in range(5000):
        memory.learn(b"%d" % number, number)
    known = [number for number in range(5000) if memory.recall(b"%d" % number) is not None]
    assert len(known) <= 1024
    assert memory.recall(b"4999") == 4999
