"""Streams passed on from socket to socket. What is deeper is tested beside the code, in Rust."""

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.kernels.core import Splicer

DEADLINE_S = 10.0


@contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, which does not block, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.setblocking(False)
            theirs.settimeout(DEADLINE_S)
            yield ours, theirs


@contextmanager
def splicer() -> Iterator[Splicer]:
    one = Splicer([0.01, 1.0])
    try:
        yield one
    finally:
        one.close()


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=200), max_size=20),
    cuts=st.lists(st.floats(0, 1), max_size=10),
    surplus=st.sampled_from([b"", b"more"]),
)
def test_every_byte_up_to_the_end_and_none_behind(chunks: list[bytes], cuts: list[float], surplus: bytes) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    places = sorted({0, len(body), *(int(cut * len(body)) for cut in cuts)})
    with splicer() as one, tcp_pair() as (source, node), tcp_pair() as (target, client):
        stream = one.start(source.fileno(), target.fileno(), b"first")
        for begin, end in pairwise(places):
            node.sendall(body[begin:end] + (surplus if end == len(body) else b""))
        received = b""
        while len(received) < len(b"first" + body):
            received += client.recv(1 << 16)
        assert received == b"first" + body
        assert select.select([one.fileno()], [], [], DEADLINE_S)[0]
        assert one.ended() == [stream]
        end_ = one.stop(stream)
        assert end_.state in ("ended", "surplus")
        assert surplus or end_.state == "ended"
        assert (end_.unsent, end_.reason == "") == (b"", end_.state == "ended")
        assert one.streams == 0


def test_gaps_between_reads_are_counted_up_to_each_bound() -> None:
    with splicer() as one, tcp_pair() as (source, node), tcp_pair() as (target, client):
        one.start(source.fileno(), target.fileno(), b"")
        for _ in range(3):
            node.sendall(b"1\r\nx\r\n")
            assert client.recv(1 << 16) == b"1\r\nx\r\n"
        counts, seconds = one.gaps()
        assert len(counts) == 3
        assert sum(counts) == 3
        assert seconds > 0
    with pytest.raises(ValueError, match="ascending"):
        Splicer([1.0, 0.5])


def test_errors_say_what_is_wrong() -> None:
    with splicer() as one, tcp_pair() as (source, _):
        with pytest.raises(OSError, match="Bad file descriptor"):
            one.start(1 << 20, source.fileno(), b"")
        with pytest.raises(ValueError, match="not two descriptors"):
            one.start(-1, source.fileno(), b"")
        with pytest.raises(KeyError):
            one.stop(7)
        with pytest.raises(KeyError):
            one.progress(7)
        assert one.streams == 0
        one.close()
        with pytest.raises(ValueError, match="closed"):
            one.ended()
