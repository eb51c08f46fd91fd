"""One kept-open HTTP/1.1 connection to a node. Responses are passed on as they come; only their framing is followed."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import httptools

from trunkline.router.head import Heads, Memory, has_length, is_chunked, response_fields, without_length
from trunkline.router.receiver import NodeFailure, Receiver
from trunkline.shared.body import Body

if TYPE_CHECKING:
    from trunkline.kernels.core import StreamEnd
    from trunkline.router.pools import Pool
    from trunkline.router.splices import Splices

MAX_HEAD_BYTES = 64 * 1024

_memory: Memory[tuple[int, bytes]] = Memory()
"""Status and fields of responses that came as a whole; without the length."""
_LARGEST = 4096
_CHUNK_HEADS = {len(b"%x\r\n\r\n" % size) + size: b"%x\r\n" % size for size in range(1, _LARGEST)}
"""How a read of some length begins if it is one whole chunk: then it need not be parsed."""


class Connection(asyncio.Protocol):
    """One connection to a node: idle in the pool, or serving one receiver."""

    complete: bool
    """Whether the response has come as a whole."""
    unframed = False
    """Whether bodies are passed on without their framing."""
    transport: asyncio.Transport
    _write: Callable[[bytes], None] | None
    _between_chunks: bool
    _stream: int | None
    """The number of what the core passes on."""
    _heard: bool
    """Whether something was read since somebody last asked."""
    _passed: int
    """Bytes passed on by the core, when somebody last asked."""
    _keep_alive: bool
    _slow_write: Callable[[bytes], None]
    _splices: "Splices"
    _target: asyncio.Transport

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.authority = pool.authority
        """Host and port, as the Host header wants them."""
        self._parser = httptools.HttpResponseParser(self)
        self._heads = Heads(_memory)
        self._receiver: Receiver | None = None
        self.reused = False
        """Whether it was kept open from an earlier request."""
        self._expect_nothing()

    def send(self, receiver: Receiver, head: bytes, body: Body) -> None:
        """Sends a request; the receiver hears of the response."""
        self._receiver = receiver
        self.transport.writelines((head, body))

    def splice(
        self,
        write: Callable[[bytes], None],
        splices: "Splices | None" = None,
        target: asyncio.Transport | None = None,
    ) -> None:
        """From now on the body goes where `write` takes it, without detours: one call per read.

        `target`: what `write` writes to. Then the core takes a stream over, once it flows: no more calls.
        """
        self._write = self._through(write)
        if splices and target and self._chunked and splices.can_pass(self.transport, target):
            self._slow_write, self._splices, self._target = write, splices, target
            self._write = self._hand_over

    @property
    def blocked(self) -> bool:
        """Whether the core has the stream, and it waits for the client."""
        return self._stream is not None and self._splices.progress(self._stream)[1]

    def progressed(self) -> bool:
        """Whether anything of the response came since somebody last asked."""
        passed = self._passed if self._stream is None else self._splices.progress(self._stream)[0]
        progressed = self._heard or passed != self._passed
        self._passed, self._heard = passed, False
        return progressed

    def abort(self) -> None:
        """The receiver does not want the rest."""
        self._receiver = None
        self._take_back()
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

        A broken event before it ends with an empty line. Nothing more of the response is passed on.
        """
        unsent = self._take_back()
        if self._until_eof:
            return event if self._last.endswith(b"\n\n") else b"\n\n" + event
        if not self._between_chunks:
            return None
        if not self._last.endswith(b"\n\n\r\n"):
            event = b"\n\n" + event
        return b"%b%x\r\n%b\r\n0\r\n\r\n" % (unsent, len(event), event)

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
            self._heard = True
            write(data)
            return
        receiver = self._receiver
        if receiver is None:  # Nobody asked: the peer does not speak HTTP as we do.
            self.transport.abort()
            return
        if write is None and not self._last and (known := self._heads.recall(data)) is not None:
            (status, fields), size, at = known
            if size == len(data) - at:
                self._has_head = self.complete = True
                receiver.on_head(status, b"%b\r\ncontent-length: %d" % (fields, size), False, data[at:])
                if self._receiver is receiver:
                    self._finish(receiver)
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NodeFailure(f"response is not HTTP/1.1 as expected: {error.__context__ or error}"))
            return
        if write is not None:
            self._last = data
            self._heard = True
            self._between_chunks = self._chunked and not self._in_chunk and data.endswith(b"\n")
            write(data)
        elif self._has_head:
            self._on_head(receiver, data)
        else:
            self._last += data
            if len(self._last) > MAX_HEAD_BYTES:
                self._fail(NodeFailure(f"response head is over {MAX_HEAD_BYTES} bytes"))
            return
        if self.complete and self._receiver is receiver:
            self._finish(receiver)

    def on_splice_end(self, end: "StreamEnd") -> None:
        """The core has come to the end of what it could pass on."""
        self._stream = None
        self._last, self._between_chunks = end.tail, end.between
        receiver = self._receiver
        if receiver is None:
            return
        if end.state in ("ended", "surplus"):
            self._parser = httptools.HttpResponseParser(self)  # It has not seen the end.
            self._keep_alive = self._keep_alive and end.state == "ended"
            self.transport.resume_reading()
            self._finish(receiver)
        elif end.state == "lost":
            self._fail(NodeFailure(f"connection lost in the response: {end.reason}"))
        else:
            self._target.abort()  # The client is gone, and its connection is about to say so.

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._take_back()
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
                    stale=self.reused and not began,
                )
            )

    def pause_writing(self) -> None:
        """A request's body is in memory as a whole anyway: nothing is held back."""

    # Parser callbacks.

    def on_message_begin(self) -> None:
        if self.complete or self._receiver is None:
            raise NodeFailure("two responses for one request")

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            raise NodeFailure("an interim response that was not asked for")
        self._has_head = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        self._in_chunk = True

    def on_chunk_complete(self) -> None:
        self._in_chunk = False

    def on_message_complete(self) -> None:
        self.complete = True

    def _on_head(self, receiver: Receiver, data: bytes) -> None:
        """The parser has seen the whole head, whose end is in `data`."""
        lines, _, body = (self._last + data).lstrip().partition(b"\r\n\r\n")
        chunked = is_chunked(lines)
        self._last = data
        self._chunked = chunked and not self.unframed
        self._until_eof = not (self._keep_alive or chunked or has_length(lines))
        self._between_chunks = self._chunked and not self._in_chunk and data.endswith(b"\n")
        status, fields = self._parser.get_status_code(), response_fields(lines, unframed=self.unframed)
        key = self._heads.unknown()
        if key is not None and self.complete and self._keep_alive and not chunked:
            _memory.learn(key, (status, without_length(fields)))
        receiver.on_head(status, fields, self._until_eof, self._first(body))

    def _through(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """What takes a read, where `write` takes what of it is for the client."""
        return write

    def _first(self, body: bytes) -> bytes:
        """Of the body, what came with the head."""
        return body

    def _finish(self, receiver: Receiver) -> None:
        self._receiver = None
        if self._keep_alive and not self.unframed and not self.transport.is_closing():
            self._expect_nothing()
            self._pool.give(self)
        else:
            self.transport.close()
        receiver.on_end()

    def _hand_over(self, data: bytes) -> None:
        """To the core, once what came before is written and the body is between two chunks."""
        if self._between_chunks and not self.complete:
            self._stream = self._splices.begin(self, self.transport, self._target, data)
        if self._stream is None:
            self._slow_write(data)

    def _take_back(self) -> bytes:
        """From the core, if it has the stream. Returns what is still to be written."""
        if self._stream is None:
            return b""
        end = self._splices.stop(self._stream)
        self._stream = None
        self._last, self._between_chunks = end.tail, end.between
        return end.unsent

    def _fail(self, failure: NodeFailure) -> None:
        receiver, self._receiver = self._receiver, None
        self.transport.abort()
        if receiver is not None:
            receiver.on_failure(failure)

    def _expect_nothing(self) -> None:
        self._has_head = self.complete = self._until_eof = False
        self._chunked = self._in_chunk = self._between_chunks = False
        self._keep_alive = True
        self._write = None
        self._stream = None
        self._heard = False
        self._passed = 0
        self._last = b""
        """The head so far; once it is complete, the last read."""
