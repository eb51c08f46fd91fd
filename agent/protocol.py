"""The client's connection: uvicorn's protocol, with bounds on what a client may leave undone."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from trunkline.agent.openai.answers import encode
from trunkline.shared.errors import RequestError

HEAD_TIMEOUT_S = 20.0
"""For a client to send a request's head, from connecting or from its first byte on."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a head that does not come in one read."""
STALL_TIMEOUT_S = 60.0
"""A client that takes nothing of what waits for it for so long is gone."""
LINGER_S = 2.0
"""For a client to read why it was refused while it is still sending."""

log = logging.getLogger(__name__)


class AgentProtocol(HttpToolsProtocol):
    """One connection. What is not HTTP is refused in OpenAI's shape."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._front: RequestResponseCycle | None = None
        """What is being answered; `cycle` may be a request behind it that came ahead of its turn."""
        self._head = _Timer(self.loop)
        """Runs while a request's head is awaited."""
        self._head_bytes = 0
        self._stall = _Timer(self.loop)
        """Runs while something waits for the client to read it."""
        self._linger = _Timer(self.loop)
        """Runs once the client was refused: nothing more is read as HTTP."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # paused means: there is something that the client has not taken
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._stall.stop()
        self._linger.stop()
        if self._front is not None:
            self.cycle = self._front  # who has to know
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._linger.running or self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()  # anything ends uvicorn's wait for the next request, be it an empty line
        if self._head.running:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(RequestError(f"headers are over the limit of {MAX_HEAD_BYTES} bytes", status=431))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head.stop()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(RequestError("not a valid HTTP/1.1 request"))

    def _unsupported_upgrade_warning(self) -> None:
        """The parser takes what follows for the other protocol: a body that was announced will not come."""
        if self.scope["method"] in ("GET", "HEAD"):
            self.cycle.keep_alive = False
        else:
            self._refuse(RequestError("this server upgrades to no other protocol"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.stop()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._front = cycle
        super()._start_asgi_task(cycle, app)

    def _await_head(self) -> None:
        if not self._head.running and not self._linger.running:
            self._head_bytes = 0
            late = RequestError(f"the headers did not arrive within {HEAD_TIMEOUT_S:g} s", status=408)
            self._head.start(HEAD_TIMEOUT_S, self._refuse, late)

    def _await_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stall.start(STALL_TIMEOUT_S, self._look_at_reader, unread)

    def _look_at_reader(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._await_reader()
        else:
            log.info("a client took none of %d bytes for %g s: its connection ends", before, STALL_TIMEOUT_S)
            self.transport.abort()

    def _refuse(self, error: RequestError) -> None:
        """Nothing more is read as HTTP. Answers, unless an answer has begun already, and ends the connection."""
        self._head.stop()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        front = self._front
        if front is not None and not front.response_complete:
            if front.response_started:
                self.transport.close()
                return
            front.disconnected = True  # what it says now goes nowhere
            front.message_event.set()
        self.flow.resume_reading()  # to see the client leave
        self._linger.start(LINGER_S, self.transport.abort)
        body = encode(error.body())
        head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.write_eof()


class _Timer:
    """One deadline, set and lifted again and again."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped; also when its time has come."""
        return self._handle is not None

    def start(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, call, *args)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
