"""One kept-open HTTP/1.1 connection to a node. Responses are passed on as they come; only their framing is followed."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import httptools

if TYPE_CHECKING:
    from trunkline.router.pools import Pool

MAX_HEAD_BYTES = 64 * 1024

Headers = list[tuple[bytes, bytes]]

_LARGEST = 4096
_CHUNK_HEADS = {len(b"%x\r\n\r\n" % size) + size: b"%x\r\n" % size for size in range(1, _LARGEST)}
"""How a read of some length begins if it is one whole chunk: then it need not be parsed."""


class NodeFailure(Exception):
    """A node did not answer as it should. `refused`: nothing listens there, so its process and cache are gone."""

    def __init__(self, message: str, *, timeout: bool = False, refused: bool = False, stale: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout
        self.refused = refused
        self.stale = stale
        """A connection that was kept open turned out to be closed: another one may well work."""


class Receiver(Protocol):
    """Who waits for a response. Called on the event loop, in this order; nothing comes after the last two."""

    def on_connected(self, connection: "Connection") -> None: ...

    def on_head(self, status: int, headers: Headers, until_eof: bool, body: bytes) -> None:
        """`until_eof`: the body ends with the connection. `body`: what of it came along, framing included.

        A receiver that wants the rest calls `splice`.
        """

    def on_end(self) -> None: ...

    def on_failure(self, failure: NodeFailure) -> None: ...


class Connection(asyncio.Protocol):
    """One connection to a node: idle in the pool, or serving one receiver."""

    transport: asyncio.Transport
    _write: Callable[[bytes], None] | None
    _between_chunks: bool

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.authority = pool.authority
        """Host and port, as the Host header wants them."""
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._reused = False
        self._status = 0
        self._expect_nothing()

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Sends a request; the receiver hears of the response."""
        self._receiver = receiver
        self.transport.writelines((head, body))

    def splice(self, write: Callable[[bytes], None]) -> None:
        """From now on the body goes where `write` takes it, without detours: one call per read."""
        self._write = write

    def abort(self) -> None:
        """The receiver does not want the rest."""
        self._receiver = None
        self.transport.abort()

    def unused(self) -> None:
        """Nobody needs it any more, but somebody else may."""
        self._pool.give(self)

    def pause(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def framed_end(self, event: bytes) -> bytes | None:
        """What to add to the body so far to end an event stream with this event; None if its framing does not allow.

        A broken event before it ends with an empty line.
        """
        if self._until_eof:
            return event if self._last.endswith(b"\n\n") else b"\n\n" + event
        if not self._between_chunks:
            return None
        if not self._last.endswith(b"\n\n\r\n"):
            event = b"\n\n" + event
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        write = self._write
        if (
            self._between_chunks
            and write is not None
            and (head := _CHUNK_HEADS.get(len(data))) is not None
            and data.startswith(head)
            and data.endswith(b"\r\n")
        ):
            # Most reads of a stream are one event in one chunk. The parser is between chunks before and after it.
            self._last = data
            self.heard = True
            write(data)
            return
        receiver = self._receiver
        if receiver is None:  # Nobody asked: the peer does not speak HTTP as we do.
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NodeFailure(f"response is not HTTP/1.1 as expected: {error.__context__ or error}"))
            return
        self._between_chunks = self._chunked and not self._in_chunk and data.endswith(b"\n")
        if write is not None:
            self._last = data
            self.heard = True
            write(data)
        elif self._has_head:
            whole = self._last + data if self._last else data
            self._last = data
            body = self._first(whole[whole.index(b"\r\n\r\n") + 4 :])
            receiver.on_head(self._status, self._headers, self._until_eof, body)
        else:
            self._last += data
            if len(self._last) > MAX_HEAD_BYTES:
                self._fail(NodeFailure(f"response head is over {MAX_HEAD_BYTES} bytes"))
            return
        if self._complete and self._receiver is receiver:
            self._finish(receiver)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        receiver = self._receiver
        if receiver is None:
            return
        self._receiver = None
        if self._until_eof and exc is None:
            receiver.on_end()
        else:
            began = self._has_head or bool(self._last)
            receiver.on_failure(
                NodeFailure(
                    f"connection lost {'in' if began else 'before'} the response: {exc or 'closed by the node'}",
                    stale=self._reused and not began,
                )
            )

    def pause_writing(self) -> None:
        """A request's body is in memory as a whole anyway: nothing is held back."""

    # Parser callbacks.

    def on_message_begin(self) -> None:
        if self._complete or self._receiver is None:
            raise NodeFailure("two responses for one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding":
            self._chunked = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            raise NodeFailure("an interim response that was not asked for")
        self._has_head = True
        self._keep_alive = self._parser.should_keep_alive()
        if not self._keep_alive and not self._chunked:
            self._until_eof = not any(name == b"content-length" for name, _ in self._headers)

    def on_chunk_header(self) -> None:
        self._in_chunk = True

    def on_chunk_complete(self) -> None:
        self._in_chunk = False

    def on_message_complete(self) -> None:
        self._complete = True

    def _first(self, body: bytes) -> bytes:
        """Of the body, what came with the head."""
        return body

    def _finish(self, receiver: Receiver) -> None:
        self._receiver = None
        if self._keep_alive and not self.transport.is_closing():
            self._expect_nothing()
            self._pool.give(self)
        else:
            self.transport.close()
        receiver.on_end()

    def _fail(self, failure: NodeFailure) -> None:
        receiver, self._receiver = self._receiver, None
        self.transport.abort()
        if receiver is not None:
            receiver.on_failure(failure)

    def _expect_nothing(self) -> None:
        self._headers: Headers = []
        self._has_head = self._complete = self._until_eof = False
        self._chunked = self._in_chunk = self._between_chunks = False
        self._keep_alive = True
        self._write = None
        self.heard = False
        """Whether something was read since somebody last set this to False."""
        self._last = b""
        """The head so far; once it is complete, the last read."""

    def reuse(self) -> "Connection":
        self._reused = True
        return self


class UnframedConnection(Connection):
    """For clients that speak HTTP/1.0 and know no chunks: passes on the body without its framing. Used once."""

    def __init__(self, pool: "Pool") -> None:
        self._pieces: list[bytes] = []
        super().__init__(pool)

    def unused(self) -> None:
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def framed_end(self, event: bytes) -> bytes | None:
        return b"\n\n" + event

    def splice(self, write: Callable[[bytes], None]) -> None:
        self._write = lambda data: write(self._first(data))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._chunked = False  # Not for the receiver.

    def _first(self, body: bytes) -> bytes:
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body
