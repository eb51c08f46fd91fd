"""A real-socket agent without a model: info, readiness, completions, event stream; with scripted faults.

    async with FakeAgent("a") as agent:
        agent.publisher.stored(keys, depths, Tier.DEVICE)
        agent.fault = Fault.CUT          # the next completions end after `cut_after` chunks
        ... agent.url ... agent.requests[-1].body ... agent.in_flight

Replies are deterministic: token i of a completion is " w{i}", and every body names the node that answered.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Self

import msgspec

from trunkline.agent.events import EventPublisher
from trunkline.shared.names import HEADER_CLUSTER, INFO_PATH, PAGE_TOKENS, TEXT_CHUNK
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import WIRE_VERSION, AgentInfo, Load, ServedModel

Answer = tuple[int, bytes]


class Fault(Enum):
    """What goes wrong with completions."""

    NONE = auto()
    UNAVAILABLE = auto()
    """503 with an OpenAI error."""
    RESET = auto()
    """The connection ends before the first byte of the answer."""
    GARBAGE = auto()
    """The answer is not HTTP."""
    HANG = auto()
    """No answer, connection open."""
    CUT = auto()
    """The connection ends after `cut_after` chunks."""
    STALL = auto()
    """Nothing comes after `cut_after` chunks, connection open."""


@dataclass
class Received:
    """A request as it arrived. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def namespace(fingerprint: str = "f00d") -> Namespace:
    return Namespace(fingerprint=fingerprint, dtype="float32", layout="16x1x2x1x8")


@dataclass
class FakeAgent:
    """Serves on 127.0.0.1, on a port chosen at the first `start` and kept by `restart`.

    `plain`: an OpenAI server of another make, without info and events; `models=None` makes that one without
    /v1/models. `delay_s` comes before the first byte, `gap_s` between chunks. `frozen`: accepts, never answers.
    """

    name: str = "a"
    models: Sequence[str] | None = ("fake",)
    plain: bool = False
    namespace: Namespace = field(default_factory=namespace)
    version: int = WIRE_VERSION
    ready: bool = True
    secret: str = ""
    """Cluster secret that info is told for."""
    frozen: bool = False
    fault: Fault = Fault.NONE
    cut_after: int = 2
    delay_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 4
    """Tokens of each reply: chunks when streamed."""
    pad: int = 0
    """Bytes added to each token's text."""
    cached_tokens: int = 0
    load: Load = field(default_factory=Load)
    transfer: str = ""
    port: int = 0
    answers: dict[str, Answer | list[Answer]] = field(default_factory=dict)
    """To what else it is asked: status and JSON, by method and path, as in "DELETE /trunkline/cache". Of a list one
    after the other, the last one again and again."""
    orders: list[Received] = field(default_factory=list)
    """Those that had such an answer."""
    requests: list[Received] = field(default_factory=list)
    """Completions received, oldest first."""
    probes: int = 0
    in_flight: int = 0
    """Completions being answered now."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        if not self.plain:
            self.start_events()
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends at once: open connections are reset."""
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await self._server.wait_closed()
        if not self.plain:
            await self.stop_events()

    async def restart(self) -> None:
        """A new incarnation on the same HTTP port: new epoch, nothing cached."""
        await self.stop()
        await self.start()

    def start_events(self) -> None:
        self.publisher = EventPublisher(self.name, lambda: self.load, max_keys=1 << 16)
        self.publisher.start()

    async def stop_events(self) -> None:
        """The stream falls silent; HTTP goes on."""
        await asyncio.to_thread(self.publisher.close)

    def info(self) -> AgentInfo:
        return AgentInfo(
            version=self.version,
            node=self.name,
            epoch=self.publisher.epoch,
            models=tuple(ServedModel(name, self.namespace, 4096) for name in self.models or ()),
            page_tokens=PAGE_TOKENS,
            text_chunk=TEXT_CHUNK,
            events=self.publisher.events,
            replay=self.publisher.replay,
            max_running=8,
            pages=1024,
            transfer=self.transfer,
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._serve(request, reader, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False: the connection ends."""
        if self.frozen:
            await _until_closed(reader)
            return False
        answer = self.answers.get(f"{request.method} {request.path}")
        if answer is not None:
            self.orders.append(request)
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            writer.write(_response(*answer))
            await writer.drain()
            return True
        if request.method == "POST":
            self.requests.append(request)
            self.in_flight += 1
            try:
                return await self._complete(request, reader, writer)
            finally:
                self.in_flight -= 1
        self.probes += 1
        status, body = self._get(request)
        writer.write(_response(status, body))
        await writer.drain()
        return True

    def _get(self, request: Received) -> tuple[int, bytes]:
        path = request.path
        if path == INFO_PATH and not self.plain:
            if self.secret and request.headers.get(HEADER_CLUSTER) != self.secret:
                return 401, json.dumps({"error": {"message": f"{HEADER_CLUSTER} is missing or wrong"}}).encode()
            return 200, msgspec.json.encode(self.info())
        if path == "/v1/models" and self.models is not None:
            return 200, json.dumps({"object": "list", "data": [{"id": name} for name in self.models]}).encode()
        if path in ("/readyz", "/health") and (not self.plain or path == "/health"):
            return (200, b"ok") if self.ready else (503, b"loading the model")
        return 404, b"not found"

    async def _complete(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.fault is Fault.HANG:
            await _until_closed(reader)
            return False
        await asyncio.sleep(self.delay_s)
        if self.fault is Fault.RESET:
            return False
        if self.fault is Fault.GARBAGE:
            writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            await writer.drain()
            return False
        if self.fault is Fault.UNAVAILABLE:
            writer.write(_response(503, b'{"error":{"message":"closing","type":"overloaded_error"}}'))
            await writer.drain()
            return True
        body = json.loads(request.body)
        pieces = self._pieces(body, chat="chat" in request.path)
        framed = b"transfer-encoding: chunked\r\ncontent-type: text/event-stream"
        if not body.get("stream"):
            whole = b"".join([piece async for piece in pieces])
            framed = b"content-length: %d\r\ncontent-type: application/json" % len(whole)
            pieces = _cut(whole)
        writer.write(b"HTTP/1.1 200 OK\r\nx-request-id: upstream\r\n" + framed + b"\r\n\r\n")
        sent = 0
        async for piece in pieces:
            if sent == self.cut_after and self.fault is Fault.CUT:
                return False
            if sent == self.cut_after and self.fault is Fault.STALL:
                await _until_closed(reader)
                return False
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if body.get("stream") else piece)
            await writer.drain()
            sent += 1
        if body.get("stream"):
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return True

    async def _pieces(self, body: dict[str, object], *, chat: bool) -> AsyncIterator[bytes]:
        """SSE events, or one JSON document."""
        words = [f" w{index}" + "." * self.pad for index in range(self.tokens)]
        base = {"id": "cmpl-1", "created": 1, "model": body.get("model"), "node": self.name}
        usage = {
            "prompt_tokens": 8,
            "completion_tokens": self.tokens,
            "total_tokens": 8 + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if not body.get("stream"):
            text = "".join(words)
            choice: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice |= {"index": 0, "finish_reason": "stop"}
            kind = "chat.completion" if chat else "text_completion"
            yield json.dumps(base | {"object": kind, "choices": [choice], "usage": usage}).encode()
            return
        for index, word in enumerate(words):
            if index:
                await asyncio.sleep(self.gap_s)
            choice = {"delta": {"content": word}} if chat else {"text": word}
            choice |= {"index": 0, "finish_reason": "stop" if index == self.tokens - 1 else None}
            kind = "chat.completion.chunk" if chat else "text_completion"
            yield b"data: " + json.dumps(base | {"object": kind, "choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


async def _cut(whole: bytes) -> AsyncIterator[bytes]:
    """In pieces, so that a fault can come between them."""
    for start in range(0, len(whole), 64):
        yield whole[start : start + 64]


async def _read(reader: asyncio.StreamReader) -> Received | None:
    """The next request; None: the client is done."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    line, *fields = head.split("\r\n")[:-2]
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    body = b""
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
    except asyncio.IncompleteReadError:
        return None
    return Received(method, path, headers, body)


def _response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


async def _until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()
