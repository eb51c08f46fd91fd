"""A node's connection follows the framing of a response however it is cut into reads."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.connection import Connection
from trunkline.router.nodes import Node
from trunkline.router.pools import Pool
from trunkline.router.receiver import NodeFailure

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport(asyncio.Transport):
    """Takes everything; nothing comes back."""

    def writelines(self, list_of_data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


class Log:
    """A receiver that writes down what it is told."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.body = b""
        self.fields: list[bytes] = []
        self.ends: list[str] = []

    def on_connected(self, connection: Connection) -> None:
        raise AssertionError("it is connected already")

    def on_head(self, status: int, fields: bytes, until_eof: bool, body: bytes) -> None:
        assert (status, until_eof) == (200, False)
        self.fields.append(fields)
        self.connection.splice(self.write)
        self.body += body

    def write(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        self.ends.append("end")

    def on_failure(self, failure: NodeFailure) -> None:
        self.ends.append("failure")


def connected() -> tuple[Pool, Log]:
    pool = Pool(Node(0, "http://127.0.0.1:1"), 4, 1.0)
    connection = Connection(pool)
    connection.connection_made(Transport())
    return pool, Log(connection)


chunks = st.lists(
    st.tuples(
        st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 5000).map(bytes)),
        st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"]),
    ),
    max_size=8,
)


@given(chunks, st.lists(st.integers(0, 10_000), max_size=10), st.booleans())
def test_a_stream_passes_unchanged_and_its_chunks_are_told_apart(
    parts: list[tuple[bytes, bytes]], cuts: list[int], whole_chunks: bool
) -> None:
    framed = [head % len(part) + part + b"\r\n" for part, head in parts]
    body = b"".join(framed) + b"0\r\n\r\n"
    boundaries = {0}
    for chunk in framed:
        boundaries.add(max(boundaries) + len(chunk))
    raw = HEAD + body
    places = {cut % len(raw) for cut in cuts} | ({len(HEAD) + at for at in boundaries} if whole_chunks else set())
    _, log = connected()
    log.connection.send(log, b"", b"")
    start = 0
    for stop in [*sorted(places - {0}), len(raw)]:
        log.connection.data_received(raw[start:stop])
        start = stop
        received = stop - len(HEAD)
        assert log.body == body[: max(0, received)]
        if 0 < received < len(body):
            assert (log.connection.framed_end(b"data: x\n\n") is not None) == (received in boundaries)
    assert log.ends == ["end"]


@given(st.lists(st.integers(0, 300), max_size=5))
def test_connection_is_reused_only_after_a_whole_response(cuts: list[int]) -> None:
    pool, log = connected()
    raw = HEAD + b"5\r\nhello\r\n0\r\n\r\n"
    for count in range(3):
        log.connection.send(log, b"", b"")
        start = 0
        for stop in [*sorted({cut % len(raw) for cut in cuts} - {0}), len(raw)]:
            assert pool.take() is None
            log.connection.data_received(raw[start:stop])
            start = stop
        assert log.ends == ["end"] * (count + 1)
        assert pool.take() is log.connection


def test_what_follows_a_broken_chunk_is_no_event() -> None:
    _, log = connected()
    log.connection.send(log, b"", b"")
    log.connection.data_received(HEAD + b"5\r\nhe")
    assert log.connection.framed_end(b"data: x\n\n") is None
    log.connection.data_received(b"llo\r\n")
    end = log.connection.framed_end(b"data: x\n\n")
    assert end == b"b\r\n\n\ndata: x\n\n\r\n0\r\n\r\n"
    log.connection.connection_lost(None)
    assert log.ends == ["failure"]


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), min_size=2, max_size=6), st.integers(0, 200))
def test_a_document_is_passed_on_alike_whether_its_head_was_seen_before_or_not(
    documents: list[tuple[bytes, bool]], cut: int
) -> None:
    pool, log = connected()
    whole = b""
    for body, split in documents:
        raw = b"HTTP/1.1 200 OK\r\nx-a: 1\r\nContent-Length: %d\r\nx-b: 2\r\n\r\n%b" % (len(body), body)
        log.connection.send(log, b"", b"")
        at = cut % len(raw) if split else 0
        for part in filter(None, (raw[:at], raw[at:])):
            assert pool.take() is None
            log.connection.data_received(part)
        whole += body
        assert log.body == whole
        fields = log.fields[-1].lower().split(b"\r\n")
        assert sorted(fields) == [b"", b"content-length: %d" % len(body), b"x-a: 1", b"x-b: 2"]
        assert pool.take() is log.connection
    assert log.ends == ["end"] * len(documents)


def test_of_two_documents_for_one_request_none_is_remembered() -> None:
    for _ in range(2):
        _, log = connected()
        log.connection.send(log, b"", b"")
        log.connection.data_received(b"HTTP/1.1 200 OK\r\nx-two: 1\r\ncontent-length: 1\r\n\r\nab")
        assert log.ends == ["failure"]
