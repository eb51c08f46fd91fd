"""The client's connection: uvicorn's protocol, with the two hot endpoints handled below ASGI.

A request for a hot endpoint becomes an `Exchange` where uvicorn would make a request cycle with a scope and a task;
everything else goes its usual way to FastAPI. Both kinds keep their order on a connection: `pipeline` holds requests
whose turn has not come.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from trunkline.router import refusals
from trunkline.router.body import Prompt, read_chat, read_completion
from trunkline.router.context import Context
from trunkline.router.exchange import Exchange
from trunkline.router.head import Heads, Memory, RequestHead, request_head
from trunkline.shared.body import Body
from trunkline.shared.errors import RequestError

Read = Callable[[Body], Prompt]
HOT: dict[bytes, Read] = {
    b"/v1/completions": read_completion,
    b"/v1/chat/completions": read_chat,
}
_memory: Memory[tuple[Read, RequestHead]] = Memory()
"""Of requests for hot endpoints whose body has a length, and whose connection stays open."""
_NEVER = float("inf")
_MAX_AHEAD = 256 * 1024
"""Bytes of pipelined requests read ahead; until then reading goes on, so that a client that leaves is noticed."""


class EdgeProtocol(HttpToolsProtocol):
    """One connection. Is watched by the ticker: `deadline` is for the next thing that the client must do."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        context: Context,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._context = context
        self._deadlines = context.settings.deadlines
        self._front: Any = None
        """What is being answered: an `Exchange` or uvicorn's cycle."""
        self._in_message = self._in_head = False
        """Of the parser."""
        self._missing = 0
        """Bytes of a body that the parser does not see."""
        self._heads = Heads(_memory)
        self._head_bytes = 0
        self._in_bulk = False
        """So much came in one read that a head in it may be over its limit."""
        self._ahead = 0
        self._deaf = False
        """Nothing more is read as HTTP: the connection ends once what is under way is written."""
        self.deadline = monotonic() + self._deadlines.head

    # Connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._context.ticker.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.ticker.forget(self)
        waiting = [self._front, *(cycle for cycle, _ in self.pipeline), self.cycle]
        for exchange in {one for one in waiting if isinstance(one, Exchange)}:
            exchange.disconnect()
        self.pipeline.clear()
        self.cycle = None if isinstance(self._front, Exchange) else self._front  # type: ignore[assignment]
        super().connection_lost(exc)
        self.cycle = self._front = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            data = self._read_known(data)
            if data:
                self._parse(data)
        except Exception as error:  # noqa: BLE001  # What is not the client's fault is logged, and answered with 500.
            self._reject(refusals.reason(error))

    def _parse(self, data: bytes) -> None:
        limit = self._context.settings.max_head_bytes
        in_head = self._in_head
        self._in_bulk = len(data) > limit
        self.parser.feed_data(data)
        if in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > limit:
                raise refusals.large_head(limit)
        if self.pipeline:
            self._ahead += len(data)
            if self._ahead > _MAX_AHEAD:
                self.flow.pause_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self._front, Exchange) and self._front.relay is not None:
            self._front.relay.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._front is None:
            self._advance()
        elif isinstance(self._front, Exchange) and self._front.relay is not None:
            self._front.relay.resume()

    def expire(self) -> None:
        """The client did not do in time what it had to."""
        if self.transport.is_closing() or self._deaf:
            self.transport.abort()
            return
        cycle = self.cycle
        if isinstance(cycle, Exchange) and cycle.reading:
            self.deadline = _NEVER
            cycle.fail(RequestError(f"the body did not arrive within {self._deadlines.body:g} s", status=408))
        elif self._in_head:
            self._reject(RequestError(f"the headers did not arrive within {self._deadlines.head:g} s", status=408))
        else:
            self._close()

    def abandon(self) -> None:
        """The router stops: what is under way ends itself, as a relay or with uvicorn's tasks."""
        if self._front is None:
            self._close()

    # Parser callbacks.

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_message = self._in_head = True
        self._head_bytes = 0
        if self._front is None:
            self.deadline = monotonic() + self._deadlines.head

    def on_headers_complete(self) -> None:
        self._in_head = False
        key = self._heads.unknown()
        if self._in_bulk:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self._context.settings.max_head_bytes:
                raise refusals.large_head(self._context.settings.max_head_bytes)
        parser = self.parser
        read = HOT.get(self.url.partition(b"?")[0]) if parser.get_method() == b"POST" else None
        if read is None:
            self._hand_over()
            return
        old = parser.get_http_version() == "1.0"
        expects = self.expect_100_continue and not old
        keep_alive = not old and parser.should_keep_alive()
        head = request_head(self.url, self.headers, expects=expects, keep_alive=keep_alive, unframed=old)
        plain = keep_alive and not expects and not parser.should_upgrade()
        if key is not None and plain and not head.request_id and b"traceparent: " not in head.fields:
            _memory.learn(key, (read, head))
        size = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        exchange = self._exchange(read, head, size)
        if parser.should_upgrade():  # The parser takes what follows for the other protocol: no body will come.
            exchange.keep_alive = False
            exchange.fail(refusals.no_upgrade())

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, Exchange):
            self.cycle.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if isinstance(self.cycle, Exchange):
            if self.cycle is self._front:
                self.deadline = _NEVER
            self.cycle.on_complete()
        else:
            super().on_message_complete()

    # Requests of hot endpoints.

    def _read_known(self, data: bytes) -> bytes:
        """A request with a head that was seen before, or a part of its body. Returns what is for the parser."""
        size, body, following = self._missing, memoryview(data), b""
        if not size:
            if self._front is not None or self._in_message or self.flow.write_paused:
                return data
            known = self._heads.recall(data)
            if known is None or not known[1]:
                return data
            (read, head), size, at = known
            if len(data) - at == size:  # Nearly always: the whole request, and its turn.
                self.cycle = self._front = Exchange(self._context, self, read, head, size)  # type: ignore[assignment]
                self.deadline = _NEVER
                self._front.serve(body[at:])
                return b""
            self._exchange(read, head, size)
            body = body[at:]
        if len(body) > size:
            body, following = body[:size], bytes(body[size:])
        self._missing = size - len(body)
        exchange: Any = self.cycle
        exchange.on_body(body)
        if not self._missing:
            if exchange is self._front:
                self.deadline = _NEVER
            exchange.on_complete()
        return following

    def _exchange(self, read: Read, head: RequestHead, size: int) -> Exchange:
        """A head is complete. `size`: of the body as declared; 0: not declared."""
        exchange = Exchange(self._context, self, read, head, size)
        self.cycle = exchange  # type: ignore[assignment]
        if self._front is None and not self.flow.write_paused:
            self._start_asgi_task(exchange, None)
        else:
            self.pipeline.appendleft((exchange, None))  # type: ignore[arg-type]
        return exchange

    # For exchanges and cycles.

    def finished(self, exchange: Exchange, keep_alive: bool) -> None:
        """The exchange's response is written."""
        if keep_alive and not self._deaf:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1
            self._close()

    def on_response_complete(self) -> None:
        """Like uvicorn's, for exchanges as well, and with the ticker in place of a timer per response."""
        self.server_state.total_requests += 1
        self._front = None
        if self.transport.is_closing():
            return
        if self._deaf:
            self._close()
            return
        if self.flow.write_paused:  # The next response would add to what the client does not read.
            self.deadline = monotonic() + self._deadlines.stalled_client
        else:
            self._advance()

    def _advance(self) -> None:
        """The next request's turn, if there is one already."""
        self.deadline = monotonic() + self._deadlines.keep_alive
        following = self.pipeline.pop() if self.pipeline else None
        if not self.pipeline:
            self._ahead = 0
            self.flow.resume_reading()
        if following is not None:
            self._start_asgi_task(*following)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._front = cycle
        if isinstance(cycle, Exchange):
            self.deadline = monotonic() + self._deadlines.body if cycle.reading else _NEVER
            cycle.begin()
        else:
            self.deadline = _NEVER
            super()._start_asgi_task(cycle, app)

    # Ends.

    def _hand_over(self) -> None:
        """Not a hot endpoint: uvicorn makes scope, cycle and task."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = expects
        super().on_headers_complete()

    def _reject(self, error: RequestError) -> None:
        """The input makes no sense any more: what is under way is finished, then the connection ends."""
        if self._deaf:
            return
        self._deaf = True
        front = self._front
        if isinstance(front, Exchange) and front.relay is None:
            front.keep_alive = False
            front.fail(error)
        elif front is not None:
            front.keep_alive = False
        else:
            self.transport.write(refusals.response(error))
            self._close()

    def _close(self) -> None:
        """Ends the connection so that the client can read what was written even while it is still sending."""
        self._deaf = True
        self.flow.resume_reading()
        unread = self.transport.get_write_buffer_size() > 0
        self.deadline = monotonic() + (self._deadlines.stalled_client if unread else self._deadlines.linger)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
