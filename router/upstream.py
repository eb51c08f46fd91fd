"""Kept-open HTTP/1.1 connections to nodes. Responses are passed on as they come; only their framing is followed."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

import httptools

from trunkline.router.nodes import Node

MAX_HEAD_BYTES = 64 * 1024

Headers = list[tuple[bytes, bytes]]


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

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.authority = pool.authority
        """Host and port, as the Host header wants them."""
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._reused = False
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
        chunked = any(name == b"transfer-encoding" for name, _ in self._headers)
        if not chunked or self._in_chunk or not self._last.endswith(b"\r\n"):
            return None
        if not self._last.endswith(b"\n\n\r\n"):
            event = b"\n\n" + event
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:  # Nobody asked: the peer does not speak HTTP as we do.
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NodeFailure(f"response is not HTTP/1.1 as expected: {error.__context__ or error}"))
            return
        write = self._write
        if write is not None:
            self._last = data
            self.heard = True
            write(data)
        elif self._has_head:
            body = (self._last + data).partition(b"\r\n\r\n")[2]
            self._last = data
            receiver.on_head(self._parser.get_status_code(), self._headers, self._until_eof, self._first(body))
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
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            raise NodeFailure("an interim response that was not asked for")
        self._has_head = True
        self._keep_alive = self._parser.should_keep_alive()
        if not self._keep_alive:
            self._until_eof = not any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

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
        self._has_head = self._complete = self._in_chunk = self._until_eof = False
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

    def _first(self, body: bytes) -> bytes:
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body


class Pool:
    """Connections to one node."""

    def __init__(self, node: Node, max_idle: int, connect_deadline: float) -> None:
        self._node = node
        self._max_idle = max_idle
        self._deadline = connect_deadline
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context() if node.url.startswith("https:") else None
        self.authority = node.url.partition("://")[2].partition("/")[0].encode()

    def take(self) -> Connection | None:
        """The connection used last, the likeliest to be alive; None if none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection.reuse()
        return None

    def give(self, connection: Connection) -> None:
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.transport.close()

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def connect(self, receiver: Receiver, kind: Callable[["Pool"], Connection]) -> None:
        """Opens a connection; the receiver hears of the result, also if it does not care any more."""
        task = asyncio.create_task(self._connect(receiver, kind), name=f"connect {self._node.name}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def close(self) -> None:
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        self.close_idle()

    def close_idle(self) -> None:
        while self._idle:
            self._idle.pop().transport.close()

    async def _connect(self, receiver: Receiver, kind: Callable[["Pool"], Connection]) -> None:
        node = self._node
        try:
            async with asyncio.timeout(self._deadline):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: kind(self), node.host, node.port, ssl=self._tls
                )
        except TimeoutError:
            receiver.on_failure(NodeFailure(f"no connection within {self._deadline} s", timeout=True))
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            receiver.on_failure(NodeFailure(f"cannot connect: {error}", refused=refused))
        else:
            receiver.on_connected(connection)


class Pools:
    """The pool of each node."""

    def __init__(self, max_idle: int, connect_deadline: float) -> None:
        self._max_idle = max_idle
        self._deadline = connect_deadline
        self._pools: dict[Node, Pool] = {}

    def of(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = Pool(node, self._max_idle, self._deadline)
        return pool

    def drop(self, node: Node) -> None:
        """The node is gone: its idle connections are closed."""
        pool = self._pools.pop(node, None)
        if pool is not None:
            pool.close_idle()

    async def close(self) -> None:
        while self._pools:
            await self._pools.popitem()[1].close()
