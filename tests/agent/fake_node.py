"""A node whose engine says what the test wants, behind the real app on a real socket."""

import asyncio
import contextlib
import socket
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx
import uvicorn

from trunkline.agent.app import create_app
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.engine.base import (
    Delta,
    Engine,
    EngineLimits,
    EngineStatus,
    Generation,
    GenerationStream,
    T,
)
from trunkline.agent.engine.text import TextModel
from trunkline.agent.events import EventPublisher
from trunkline.agent.node import Node, Serving, State
from trunkline.agent.orders import Orders
from trunkline.agent.pins import Pins
from trunkline.agent.prepare import Preparer
from trunkline.agent.protocol import AgentProtocol
from trunkline.agent.settings import AgentSettings
from trunkline.shared.errors import Overloaded, TrunklineError
from trunkline.shared.names import Tier
from trunkline.shared.namespace import Namespace
from trunkline.shared.wire import Load, ServedModel, TierLoad

MODEL = ServedModel("fake", Namespace("f", "float32", "16x1x2x1x8"), 200)
HELLO = (Delta("Hel", (1,), cached_tokens=16), Delta("lo", (2, 3), (), "stop", 16))
HANG = "hang"
Step = Delta | Exception | str


class FakeStream(GenerationStream):
    def __init__(self, engine: "FakeEngine", script: Sequence[Step]) -> None:
        self._engine = engine
        self._script = script

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for step in self._script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, str):
                await asyncio.Event().wait()
            else:
                yield step

    def cancel(self) -> None:
        self._engine.live.discard(self)


class FakeEngine(Engine):
    """`script` is what every generation does; `live` are the streams not yet cancelled."""

    def __init__(self, script: Sequence[Step] = HELLO, room: int = 1000) -> None:
        self.model = MODEL
        self.pages = 10
        self.page_bytes = 4096
        self.limits = EngineLimits()
        self.memory = None
        self.cache = PageCache(40, Unheard())
        self.pinning = self.cache.pinned
        self.script = script
        self.room = room
        self.alive = True
        self.generations: list[Generation] = []
        self.notes: list[tuple[list[int], bytes, bytes]] = []
        self.live: set[FakeStream] = set()

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def read_from(self, peers: object) -> None: ...

    async def on_cache(self, work: Callable[[PageCache], T]) -> T:
        return work(self.cache)

    def submit(self, generation: Generation) -> GenerationStream:
        if len(self.live) >= self.room:
            raise Overloaded("full", retry_after=2.4)
        self.generations.append(generation)
        stream = FakeStream(self, self.script)
        self.live.add(stream)
        return stream

    def attach_text(self, tokens: array, salt: str, keys: bytes, depths: bytes) -> None:  # type: ignore[type-arg]
        self.notes.append((list(tokens), keys, depths))

    def load(self) -> Load:
        return Load(running=len(self.live), tiers=(TierLoad(Tier.DEVICE, 10, 4, 6, 0, 6),))

    def status(self) -> EngineStatus:
        return EngineStatus(alive=self.alive, steps=5)


class Unheard:
    """A sink that nobody listens to."""

    def stored(self, keys: bytes, depths: bytes, tier: Tier) -> None: ...
    def moved(self, keys: bytes, tier: Tier) -> None: ...
    def removed(self, keys: bytes) -> None: ...
    def cleared(self) -> None: ...


class FakeNode(Node):
    """Starts at once, or when `gate` is set."""

    def __init__(
        self, engine: FakeEngine, text: TextModel, secret: str | None, gate: asyncio.Event | None, otlp: str | None
    ) -> None:
        super().__init__(AgentSettings(Path("m"), MODEL.name, "node-1", secret=secret, otlp_endpoint=otlp))
        self._fake = engine
        self._text = text
        self._gate = gate

    async def start(self) -> None:
        if self._gate is not None:
            await self._gate.wait()
        events = EventPublisher("node-1", self._fake.load, max_keys=100)
        events.start()
        self._events = events
        preparer = Preparer(self._text, MODEL.namespace, MODEL.context, 10)
        self.pins = Pins(self._fake, None)
        await self.pins.open()
        self.serving = Serving(self._fake, self._text, preparer, events, Orders(self._fake), self._tracing)
        self.state = State.READY


@contextlib.asynccontextmanager
async def served(
    engine: FakeEngine,
    text: TextModel,
    *,
    secret: str | None = None,
    gate: asyncio.Event | None = None,
    otlp: str | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app on a port of its own, ready unless `gate` holds it back."""
    node = FakeNode(engine, text, secret, gate, otlp)
    started: list[TrunklineError | None] = []
    config = uvicorn.Config(
        create_app(node, started.append), http=AgentProtocol, lifespan="on", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.create_task(server._serve([listener]))  # without taking over the test's signals
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            await until(lambda: server.started and bool(started or gate))
            yield client
        server.should_exit = True
        await running
    assert not engine.live


async def until(condition: object, seconds: float = 10.0) -> None:
    """Polls a callable; fails the test when it does not come true."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
