"""One agent: its engine, the text side of its model, and its event stream, from start to close."""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from trunkline.agent.engine.base import Engine
from trunkline.agent.engine.builtin.engine import BuiltinEngine
from trunkline.agent.engine.builtin.executor import LoadModel
from trunkline.agent.engine.emulated import executor as emulated
from trunkline.agent.engine.emulated.settings import Emulation
from trunkline.agent.engine.emulated.text import EmulatedText
from trunkline.agent.engine.text import TextModel
from trunkline.agent.events import EventPublisher
from trunkline.agent.handover import Handover
from trunkline.agent.orders import Orders
from trunkline.agent.pins import Pins
from trunkline.agent.prepare import Preparer
from trunkline.agent.registration import Registration
from trunkline.agent.settings import AgentSettings
from trunkline.agent.transfer.endpoint import TransferEndpoint
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity
from trunkline.shared.errors import Overloaded
from trunkline.shared.handover import DrainStatus
from trunkline.shared.names import MAX_TEXT_KEYS_PER_PAGE, PAGE_TOKENS, TEXT_CHUNK
from trunkline.shared.tracing import Tracing
from trunkline.shared.wire import WIRE_VERSION, AgentInfo, Load

KEEP_S = 5.0
"""At least, when a node ends, for pages that only memory has to be written to the disk."""


class State(StrEnum):
    """Where in its life a node is."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class Serving:
    """What a node that has loaded serves with."""

    engine: Engine
    text: TextModel
    preparer: Preparer
    events: EventPublisher
    orders: Orders
    tracing: Tracing | None = None
    since: int = field(default_factory=lambda: int(time.time()))
    """Unix time in seconds."""


class Node:
    """Loads, serves, closes. Used from the event loop."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises ConfigError for traces that cannot be sent."""
        self.settings = settings
        self.state = State.LOADING
        self.serving: Serving | None = None
        """None until the node has loaded; still there while it closes."""
        self.registration: Registration | None = None
        """None: no registry, or not loaded yet."""
        self.pins: Pins | None = None
        """None until the node has loaded."""
        self.transfer: TransferEndpoint | None = None
        """None until the node has loaded."""
        self.handover: Handover | None = None
        """None unless the node drains, or has drained."""
        endpoint = settings.otlp_endpoint
        self._tracing = None if endpoint is None else Tracing(endpoint, "trunkline-agent", settings.node)
        self._late = 0.0
        """When a node that drains wants to have ended, on the monotonic clock."""
        self._engine: Engine | None = None
        self._events: EventPublisher | None = None

    async def start(self) -> None:
        """Loads everything. Raises ConfigError."""
        text, load = await asyncio.to_thread(_open_model, self.settings.model)
        self._engine = engine = BuiltinEngine(self.settings, text, lambda pages: self._open_events(engine, pages), load)
        await engine.start()
        if self._events is None:
            raise RuntimeError("the engine has started without its event stream")
        preparer = Preparer(text, engine.model.namespace, engine.model.context, self.settings.limits.max_waiting)
        offer = Offer(self._events.epoch, engine.page_bytes)
        identity = Identity(self.settings.node, engine.model.namespace, offer)
        transfer = self.settings.transfer
        self.transfer = TransferEndpoint(identity, engine.lender, engine.memory, transfer, self.settings.secret)
        if self.transfer.puller is not None:
            engine.read_from(self.transfer.puller)
        await self.transfer.start()
        self.pins = Pins(engine, self.settings.disk.folder if self.settings.disk is not None else None)
        await self.pins.open()
        self.serving = Serving(engine, text, preparer, self._events, Orders(engine), self._tracing)
        if self.state is State.LOADING:
            self.state = State.READY
            settings = self.settings
            if settings.registry is not None:
                epoch = self._events.epoch
                self.registration = Registration(settings.registry, settings.node, epoch, settings.secret)
                self.registration.start()

    def ready(self) -> Serving:
        """Raises Overloaded (503) unless requests can be served now."""
        if self.serving is None or self.state is not State.READY:
            raise Overloaded(f"this node is {self.state}", retry_after=5.0, status=503)
        if not self.serving.engine.status().alive:
            raise Overloaded("the engine has failed: this node must be restarted", retry_after=60.0, status=503)
        return self.serving

    def drain(self) -> None:
        """No new requests; those that run go on, and warm prefixes are offered to routers. Idempotent."""
        if self.state is State.LOADING:
            self.state = State.CLOSING
        elif self.state is State.READY and self.serving is not None:
            self.state = State.DRAINING
            self._late = time.monotonic() + self.settings.drain_s
            self.handover = Handover(self.serving.engine, self.settings.drain_s)

    def resume(self) -> None:
        """Requests are taken again, if the node does not end."""
        if self.state is State.DRAINING:
            self.state, self.handover = State.READY, None

    @property
    def handed_on(self) -> bool:
        """Whether no warm prefix waits to be pulled by another node any more."""
        return self.handover is None or self.handover.over

    def drain_status(self) -> DrainStatus:
        """Raises Overloaded while the node is loading."""
        if self.handover is not None:
            return self.handover.status()
        load = self.ready().engine.load()
        return DrainStatus(draining=False, running=load.running + load.waiting)

    async def close(self) -> None:
        """Ends what still runs. Idempotent; also for a node whose `start` has failed."""
        self.state = State.CLOSING
        if self.registration is not None:
            await self.registration.close()
        if self.pins is not None:
            await self.pins.close()
        if self.transfer is not None:
            await self.transfer.close()
        if self.serving is not None:
            self.serving.preparer.close()
        if self._engine is not None:
            await self._engine.close(max(KEEP_S, self._late - time.monotonic()))
        if self._events is not None:
            await asyncio.to_thread(self._events.close)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def info(self) -> AgentInfo:
        """Who this is, for routers. Raises Overloaded while it is loading."""
        if self.serving is None:
            raise Overloaded(f"this node is {self.state}", retry_after=5.0, status=503)
        engine, events = self.serving.engine, self.serving.events
        return AgentInfo(
            version=WIRE_VERSION,
            node=self.settings.node,
            epoch=events.epoch,
            models=(engine.model,),
            page_tokens=PAGE_TOKENS,
            text_chunk=TEXT_CHUNK,
            events=events.events,
            replay=events.replay,
            max_running=engine.limits.max_running,
            pages=engine.pages,
            transfer=self.transfer.address if self.transfer and self.transfer.lending else "",
        )

    def _open_events(self, engine: Engine, pages: int) -> EventPublisher:
        """In the thread that loads: the engine reports to it from the first page on."""
        settings = self.settings
        events = EventPublisher(
            settings.node,
            partial(self._load, engine),
            max_keys=pages * (1 + MAX_TEXT_KEYS_PER_PAGE),
            host=settings.host,
            events_port=settings.events_port,
            replay_port=settings.replay_port,
        )
        events.start()
        self._events = events
        return events

    def _load(self, engine: Engine) -> Load:
        """From the thread of the event stream."""
        leaves = self.state in (State.DRAINING, State.CLOSING)
        return msgspec.structs.replace(engine.load(), draining=True) if leaves else engine.load()


def _open_model(model: Path | Emulation) -> tuple[TextModel, LoadModel]:
    """Its text side, and how to load the rest. Raises ConfigError."""
    if isinstance(model, Emulation):
        return EmulatedText(), partial(emulated.load, model)
    # Imported here: an emulated node needs neither torch nor tokenizers, which take seconds and memory.
    from trunkline.agent.engine.builtin import torch_executor
    from trunkline.agent.engine.builtin.tokenizer import load_tokenizer

    return load_tokenizer(model), partial(torch_executor.load, model)
