"""Pages of another node over TCP, straight between sockets and slots; `kernels/core/src/stream.rs` moves the bytes.

Nothing of it runs on an event loop, and no byte of a page passes through Python. A few streams share a batch.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trunkline.agent.cache.pace import SHARE
from trunkline.agent.transfer import hello
from trunkline.agent.transfer.backend import Backend, Result, Slots, Status
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.listener import Listener
from trunkline.agent.transfer.offer import Offer
from trunkline.kernels.core import Lender, PageSlots, PageStream, Tls, fetch_pages
from trunkline.shared.names import Tier

HELLO_S = 2.0
IDLE_S = 300.0
"""A connection on which nothing is asked for so long is closed."""
STALL_S = 10.0
"""A reader that takes nothing for so long is given up."""
READ_STALL_S = 1.0
"""A holder that sends nothing for so long is."""
NICENESS = 10
"""Of threads that lend: the engine's go first where there are too few cores."""


class TcpLending:
    """The holder's side."""

    def __init__(
        self,
        host: str,
        port: int,
        regions: Iterable[tuple[Tier, PageSlots]],
        secret: str | None,
        epoch: int,
        tls: Tls | None = None,
    ) -> None:
        """`tls`: None: nothing is encrypted. Raises OSError if the address cannot be had."""
        self._secret, self._epoch, self._tls = secret, epoch, tls
        lent = list(regions)
        self._page_bytes = lent[0][1].page_bytes
        self.lender = Lender(lent)
        listening = socket.create_server((host, port), family=_family(host))
        self.port: int = listening.getsockname()[1]
        self._listener = Listener("lend-tcp", listening, self._serve)

    def give_way(self, *, computing: bool) -> None:
        """To an engine that computes on the same cores, or does no more: from any thread, does not wait."""
        self.lender.share = SHARE if computing else 0.0

    def close(self) -> None:
        """Ends all reads. Idempotent."""
        self._listener.close()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = _name(peer)  # Once it is gone, nobody knows any more who it was.
        try:
            stream = PageStream(peer.fileno(), HELLO_S, self._tls, asked=True)
        except OSError as error:
            raise TransferError(f"no TLS with a reader at {reader}: {error}") from None
        hello.lend(stream, self._secret, self._epoch, self._page_bytes)
        self.lender.serve(stream, IDLE_S, STALL_S)


class TcpBackend(Backend):
    """The reader's side."""

    name = "tcp"
    tiers = frozenset({Tier.DEVICE, Tier.HOST})

    def __init__(
        self, offer: Offer, own: PageSlots, secret: str | None, streams: int = 1, tls: Tls | None = None
    ) -> None:
        """`own`: the host tier's slots here. `tls`: None: nothing is encrypted. Raises TransferError."""
        if offer.encrypted and tls is None:
            raise OfferError("it encrypts pages, which this node does not: start both with --transfer-plain or neither")
        if tls is not None and not offer.encrypted:
            raise OfferError("its pages would come unencrypted: start neither node with --transfer-plain, or both")
        if offer.page_bytes != own.page_bytes:
            raise OfferError(f"its pages are of {offer.page_bytes} bytes, ours of {own.page_bytes}")
        self._own = own
        self._sockets: list[socket.socket] = []
        self._streams: list[PageStream] = []
        self._threads = ThreadPoolExecutor(streams, "read-tcp") if streams > 1 else None
        self._map = self._threads.map if self._threads else map
        self._closed = False
        self._reading = threading.Lock()
        """Held while a read uses the sockets' numbers: so long they are not closed."""
        try:
            for _ in range(streams):
                self._sockets.append(_connect(offer))
                self._streams.append(_introduced(self._sockets[-1], offer, secret, tls))
        except (OSError, ValueError, OverflowError) as error:  # The last two: what it offers is no host and port.
            self.close()
            raise TransferError(f"no connection to {offer.tcp}: {error}") from None
        except TransferError:
            self.close()
            raise

    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        with self._reading:
            if self._closed:
                return Result(bytes([Status.LOST]) * len(targets), "closed")
            count = len(self._streams)
            parts = self._map(
                self._read,
                self._streams,
                np.array_split(sources, count),
                np.array_split(targets, count),
                [timeout_s] * count,
            )
            results = list(parts)
        error = next((result.error for result in results if result.error), None)
        return Result(b"".join(result.statuses for result in results), error)

    def close(self) -> None:
        self._closed = True
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._reading:
            for connection in self._sockets:
                connection.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _read(self, stream: PageStream, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        stall_s = min(READ_STALL_S, timeout_s)
        return Result(*fetch_pages(stream, sources.data, self._own, targets.data, stall_s, timeout_s))


def _connect(offer: Offer) -> socket.socket:
    host, _, port = offer.tcp.rpartition(":")
    holder = socket.create_connection((host.strip("[]"), int(port)), HELLO_S)
    holder.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    holder.setblocking(True)
    return holder


def _introduced(holder: socket.socket, offer: Offer, secret: str | None, tls: Tls | None) -> PageStream:
    stream = PageStream(holder.fileno(), HELLO_S, tls)
    hello.borrow(stream, secret, offer.epoch, offer.page_bytes)
    return stream


def _name(peer: socket.socket) -> str:
    host, port = peer.getpeername()[:2]
    return f"{host} port {port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
