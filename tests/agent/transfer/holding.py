"""A holder without an engine: a cache with real tiers, a thread that turns it like an engine's, and its server."""

import asyncio
import contextlib
import queue
import socket
import ssl
import threading
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.agent.tiers import NAMESPACE, Memory, TierReplay
from trunkline.agent.cache.cache import PageCache
from trunkline.agent.cache.chain import Chain
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Question
from trunkline.agent.transfer.leases import LeaseLimits
from trunkline.agent.transfer.lender import Lender
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.server import Identity, TransferServer
from trunkline.shared.names import PAGE_TOKENS, Tier
from trunkline.shared.namespace import Namespace

T = TypeVar("T")
SECRET = "a secret of the cluster"
LIMITS = LeaseLimits(1 << 20, 1 << 20)


def tokens_of(*blocks: int) -> list[int]:
    return [block * 1000 + at for block in blocks for at in range(PAGE_TOKENS)]


def question(*blocks: int, first: int = 0, namespace: Namespace = NAMESPACE) -> Question:
    """Where are the pages of these blocks?"""
    chain = Chain(namespace, tokens_of(*blocks))
    return Question(namespace, chain.keys, chain.tokens.tobytes(), first, len(chain.keys))


class Cache:
    """Pages of 4 KiB on the device and in the host, and on a disk if there is a folder."""

    def __init__(
        self,
        pages: int = 32,
        host: int = 32,
        disk: Path | None = None,
        limits: LeaseLimits = LIMITS,
        wake: Callable[[], None] = lambda: None,
        **lender: Any,
    ) -> None:
        self.memory = Memory(pages, host, batch=8, disk=disk)
        lower = self.memory.lower
        self.cache = PageCache(pages, TierReplay(), lower)
        self.lender = Lender(self.cache, limits, wake, **lender)

    def compute(self, *blocks: int, namespace: Namespace = NAMESPACE) -> None:
        """A request that comes and ends."""
        chain = Chain(namespace, array("i", tokens_of(*blocks)))
        pages = self.cache.match(chain)
        missing = len(chain.keys) - len(pages)
        fresh = self.cache.allocate(missing)
        if fresh is None:  # A page that is being copied away is not free before that ends.
            assert any(tier.in_flight for tier in self.cache.tiers())
            self.settle()
            fresh = self.cache.allocate(missing)
        assert fresh is not None
        for index, page in enumerate(fresh, len(pages)):
            self.memory.write(page, chain.keys[index].to_bytes(8, "little"))
            pages.append(self.cache.commit(chain, index, page))
        self.cache.release(pages)

    def content(self, tier: Tier, slot: int) -> bytes:
        """What `compute` has written there: the key of the page."""
        page = (self.memory.device if tier is Tier.DEVICE else self.memory.lower.host.blocks)[slot]
        assert page[:8].tobytes() == page[-8:].tobytes(), "torn"
        return page[:8].tobytes()

    def settle(self) -> None:
        """Turns and moves until nothing happens any more."""
        while True:
            self.turn()
            if not self.memory.lanes.run():
                return

    def turn(self) -> None:
        self.cache.turn()
        self.lender.turn()
        self.cache.check()
        self.lender.check()


class HoldingNode:
    """`run` is for whatever an engine thread does."""

    def __init__(
        self,
        node: str,
        epoch: int,
        namespace: Namespace,
        secret: str | None,
        tls: ssl.SSLContext | None,
        **cache: Any,
    ) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self.hung = threading.Event()
        self.hung.set()
        self.parts = Cache(wake=lambda: self._inbox.put(lambda: None), **cache)
        identity = Identity(node, namespace, Offer(epoch, 4096, "0.0.0.0:1"))
        self.server = TransferServer(identity, self.parts.lender, secret, tls)
        self.address = ""
        self._thread = threading.Thread(target=self._turns, daemon=True)

    async def start(self, port: int = 0) -> None:
        self._thread.start()
        listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        await self.server.start(listener)

    async def close(self) -> None:
        await self.server.close()
        self.hung.set()
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        if self.failure is not None:
            raise self.failure

    async def run(self, work: Callable[[Cache], T]) -> T:
        """On the engine thread, after what was told it before."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._inbox.put(lambda: loop.call_soon_threadsafe(done.set_result, work(self.parts)) and None)
        async with asyncio.timeout(10):
            return await done

    async def leases(self) -> tuple[int, int]:
        """(leases, pages lent), after what was told the lender before."""
        return await self.run(lambda parts: (parts.turn(), len(parts.lender.leases), parts.lender.leases.pages)[1:])

    def _turns(self) -> None:
        try:
            while (item := self._inbox.get()) is not None:
                self.hung.wait(20)
                item()
                self.parts.turn()
                while self.parts.memory.lanes.run():
                    self.parts.turn()
        except BaseException as failure:  # noqa: BLE001 - told by `close`
            self.failure = failure


@contextlib.asynccontextmanager
async def holding(
    *,
    node: str = "holder",
    epoch: int = 7,
    namespace: Namespace = NAMESPACE,
    secret: str | None = SECRET,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
    **cache: Any,
) -> AsyncIterator[HoldingNode]:
    """Started, and closed with every page accounted for."""
    held = HoldingNode(node, epoch, namespace, secret, tls, **cache)
    await held.start(port)
    try:
        yield held
    finally:
        await held.close()
        leases = held.parts.lender.leases
        held.parts.turn()
        assert len(leases) == leases.pages == 0
        for tier in held.parts.cache.tiers():
            assert tier.in_flight == tier.leased == 0
            assert tier.resident == tier.cached


@contextlib.asynccontextmanager
async def reading(
    *,
    node: str = "reader",
    namespace: Namespace = NAMESPACE,
    secret: str | None = SECRET,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[TransferClient]:
    client = TransferClient(Identity(node, namespace, Offer(9, 4096)), secret, tls)
    try:
        yield client
    finally:
        await client.close()
