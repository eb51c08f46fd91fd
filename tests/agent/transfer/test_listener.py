"""Connections that cannot be taken now, and those after them."""

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from trunkline.agent.transfer import listener
from trunkline.agent.transfer.listener import Listener

SOON_S = 10.0


class Scarce(socket.socket):
    """Has no file descriptors left for the first `lacks` connections."""

    lacks = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@contextmanager
def echoing(lacks: int = 0) -> Iterator[tuple[Listener, tuple[str, int]]]:
    listening = Scarce()
    listening.lacks = lacks
    listening.bind(("127.0.0.1", 0))
    one = Listener("echo", listening, lambda peer: peer.sendall(peer.recv(9)))
    try:
        yield one, listening.getsockname()
    finally:
        one.close()


def answer(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, SOON_S) as peer:
        peer.sendall(b"hello")
        return peer.recv(9)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.001)


def test_after_there_was_no_room_for_it_a_connection_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with echoing(lacks=3) as (_, address):
        assert answer(address) == b"hello"
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"echo: {n} connections could not be taken so far: [Errno 24] Too many open files" for n in (1, 2)]


def test_after_a_thread_that_could_not_start_others_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with echoing() as (one, address):
        with monkeypatch.context() as scarce:
            scarce.setattr(threading, "Thread", Refused)
            with closing(socket.create_connection(address, SOON_S)) as peer:
                assert peer.recv(1) == b"", "closed at once"
        assert (one.refused, one.connections) == (1, 0)
        assert answer(address) == b"hello"
    assert "echo: 1 connections could not be taken so far: can't start new thread" in caplog.text


def test_closing_ends_the_accepting_thread_though_no_connection_can_be_taken() -> None:
    with echoing(lacks=1 << 30) as (one, _):
        pass
    assert not one._thread.is_alive()
