"""A router on a real socket, and a client that sends exactly the bytes it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
import uvloop

from tests.router.fakes import FakeAgent
from trunkline.router.app import Router, bind
from trunkline.router.nodes import Node, NodeState, Timing
from trunkline.router.settings import Deadlines, SchedulerSettings, Settings
from trunkline.router.tenants import Tenants

FAST = Timing(probe_s=0.05, probe_timeout_s=0.5, probe_backoff_s=0.1)
PATIENT = Deadlines(drain=2.0)
DEADLINE_S = 30.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_T = TypeVar("_T")


def run(test: Coroutine[Any, Any, _T]) -> _T:
    """On the loop that serves in production."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(test)


@dataclass
class Served:
    """A router that serves."""

    router: Router
    server: uvicorn.Server
    port: int

    @property
    def inflight(self) -> int:
        return self.router.context.counters.inflight

    def idle(self) -> bool:
        """Nothing is under way, on any account."""
        context = self.router.context
        loads = [context.scheduler.load_of(node) for node in context.registry.nodes]
        return self.inflight == 0 and all(load.running == 0 and load.pending == 0 for load in loads)


@asynccontextmanager
async def serving(
    agents: Sequence[FakeAgent],
    *,
    tenants: Tenants | None = None,
    deadlines: Deadlines = PATIENT,
    **changes: Any,
) -> AsyncIterator[Served]:
    """Ready once every agent that is up has been seen."""
    settings = Settings(
        nodes=tuple(agent.url for agent in agents), deadlines=deadlines, scheduler=SchedulerSettings(seed=1), **changes
    )
    router = Router(settings, tenants or Tenants(), timing=FAST)
    server = router.server()
    listener = bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: all(_seen(node) for node in router.context.registry.nodes))
        yield Served(router, server, listener.getsockname()[1])
    finally:
        server.should_exit = True
        await task
        listener.close()


def _seen(node: Node) -> bool:
    """Not if a probe was merely too late, on a machine that stood still: the next one will not be."""
    return node.state is not NodeState.JOINING and "no whole answer" not in node.error


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what other tasks bring about."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Reply:
    """A response. `body` without its framing; `whole`: it ended as its framing promises."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = True
    raw: bytes = field(default=b"", repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object; fails if it is not of that shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["code"] is None or isinstance(error["code"], str)
        return error

    def events(self) -> list[Any]:
        """Data of the server-sent events, decoded; "[DONE]" as it is."""
        data = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [text if text == "[DONE]" else json.loads(text) for text in data]


def request(
    path: str = CHAT,
    body: Any = None,
    *,
    method: str = "POST",
    version: str = "1.1",
    headers: Sequence[str] = (),
) -> bytes:
    """A request; `body` is sent as it is if it is bytes, else as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(chat() if body is None else body).encode()
    lines = [f"{method} {path} HTTP/{version}", "host: localhost", f"content-length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}


class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, port: int, limit: int = 1 << 20) -> None:
        self._port = port
        self._limit = limit

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=self._limit)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def ask(self, raw: bytes) -> Reply:
        self.writer.write(raw)
        return await self.reply()

    async def head(self) -> Reply:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = raw.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        assert len(headers) == len(fields), f"a header is there twice: {fields}"
        return Reply(int(line.split(" ")[1]), headers, raw=raw)

    async def reply(self) -> Reply:
        async with asyncio.timeout(DEADLINE_S):
            reply = await self.head()
            if reply.status in (100, 204, 304):
                return reply
            try:
                if reply.headers.get("transfer-encoding") == "chunked":
                    while size := int(await self.reader.readline(), 16):
                        reply.body += await self.reader.readexactly(size)
                        assert await self.reader.readexactly(2) == b"\r\n"
                    assert await self.reader.readline() == b"\r\n"
                elif "content-length" in reply.headers:
                    reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
                else:
                    reply.body = await self.reader.read()
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                reply.whole = False
        return reply

    async def closed(self) -> bool:
        """Whether the router ends the connection, having sent nothing more."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


async def ask(port: int, raw: bytes) -> Reply:
    async with Client(port) as client:
        return await client.ask(raw)
