"""Asks other nodes for pages on behalf of the cache, and reads them: `agent.cache.peers.Peers`."""

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import takewhile

from trunkline.agent.cache.peers import Found, Wanted
from trunkline.agent.transfer.backend import Slots
from trunkline.agent.transfer.client import TransferClient
from trunkline.agent.transfer.connection import Located, Question
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import TransferError
from trunkline.agent.transfer.link import Link
from trunkline.agent.transfer.nixl import NixlPort
from trunkline.agent.transfer.offer import Offer
from trunkline.kernels.core import NOT_LENT, PageSlots, Tls

MOST_LINKS = 64
"""Holders whose connections for pages are kept; the one unused for longest is closed."""
log = logging.getLogger(__name__)


class _Run:
    """What was located, up to the first page that is not lent."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self.held = located.held
        lent = sum(1 for _ in takewhile(lambda tier: tier != NOT_LENT, located.descriptors["tier"].tolist()))
        self.descriptors: Descriptors = located.descriptors[:lent]


class Puller:
    """`locate` and `release` are for the engine thread, `read` for lanes, `close` for the event loop."""

    def __init__(
        self,
        client: TransferClient,
        own: PageSlots,
        secret: str | None,
        nixl: NixlPort | None = None,
        tls: Tls | None = None,
    ) -> None:
        """On the event loop that the client is used on. `own`: the host tier's slots here. For the rest see `Link`."""
        self.failures: Counter[str] = Counter()
        """Of ways to holders, by name."""
        self._client, self._own, self._secret, self._nixl, self._tls = client, own, secret, nixl, tls
        self._events = asyncio.get_running_loop()
        self._asking: set[asyncio.Task[None]] = set()
        self._links: OrderedDict[Offer, Link] = OrderedDict()
        self._lock = threading.Lock()
        """Of `_links` and `_closed`: no section waits."""
        self._closed = False

    def locate(
        self,
        holder: str,
        wanted: Wanted,
        wait_s: float,
        timeout_s: float,
        answered: Callable[[Found | None], None],
    ) -> None:
        question = Question(wanted.namespace, wanted.keys, wanted.tokens, wanted.first, len(wanted.keys))

        def ask() -> None:
            task = asyncio.create_task(self._ask(holder, question, wait_s, timeout_s, answered))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

        try:
            self._events.call_soon_threadsafe(ask)
        except RuntimeError:  # the event loop has ended, and the node with it
            answered(None)

    def read(self, found: Found, sources: Descriptors, targets: Slots, timeout_s: float) -> bytes:
        link = self._link(_run(found).located.holder.offer)
        return link.read(sources, targets, timeout_s)

    def release(self, found: Found) -> None:
        try:
            self._events.call_soon_threadsafe(_run(found).located.release)
        except RuntimeError:
            log.debug("transfer: a lease ends with its connection: the event loop is closed")

    def links(self) -> list[Link]:
        """To the holders that were read from lately."""
        with self._lock:
            return list(self._links.values())

    async def close(self) -> None:
        """Ends every question and every read. Idempotent."""
        with self._lock:
            self._closed = True
        tasks = list(self._asking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self.links():
            await asyncio.to_thread(link.close)

    async def _ask(
        self,
        holder: str,
        question: Question,
        wait_s: float,
        timeout_s: float,
        answered: Callable[[Found | None], None],
    ) -> None:
        found: Found | None = None
        try:
            found = _Run(await self._client.locate(holder, question, wait_s, timeout_s))
        except TransferError as error:
            log.debug("transfer: nothing is pulled from %s: %s", holder, error)  # the client says it aloud
        finally:
            answered(found)

    def _link(self, offer: Offer) -> Link:
        with self._lock:
            link = self._links.get(offer)
            if link is None:
                secret = offer.key or self._secret
                link = self._links[offer] = Link(offer, self._own, secret, self.failures, self._nixl, self._tls)
            self._links.move_to_end(offer)
            old = self._links.popitem(last=False)[1] if len(self._links) > MOST_LINKS else None
            closed = self._closed
        if old is not None:
            old.close()
        if closed:
            link.close()
        return link


def _run(found: Found) -> _Run:
    if not isinstance(found, _Run):
        raise TypeError(f"{found!r} was not found here")
    return found
