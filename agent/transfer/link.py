"""This node's ways to read from one holder: opened when needed, the quickest first, left alone when they fail."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from trunkline.agent.meter import Meter
from trunkline.agent.transfer.backend import Backend, Slots, Status
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import TransferError
from trunkline.agent.transfer.nixl import NixlBackend, NixlPort
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.shm import ShmBackend, is_here
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.kernels.core import PageSlots, Tls

REST_S = 30.0
"""A way that failed is not tried again for so long."""
FRESH_S = 60.0
"""So long a measured speed holds."""
WINDOW_S = 5.0
"""Of reading, that the measured speed looks back on."""
STREAMS = 4
"""To another machine: one TCP connection does not fill a fast network. Here they would only take turns on its cores."""
log = logging.getLogger(__name__)


class Way:
    """One backend to the holder. Used under the link's lock, but for what says otherwise."""

    def __init__(self, kind: type[Backend], start: Callable[[], Backend], failures: Counter[str]) -> None:
        """`failures`: counted there, by name."""
        self.name, self.tiers = kind.name, list(kind.tiers)
        self.backend: Backend | None = None
        self.speed = Meter(WINDOW_S)
        """Pages per second."""
        self.measured_at = -FRESH_S
        self.rests_until = 0.0
        self._slow = kind.opens_slowly
        self._opening: Future[Backend] | None = None
        self._failures = failures
        self._start = start

    def open(self) -> Backend | None:
        """None: it is being opened. Raises TransferError if it cannot be."""
        if self.backend is None and not self._slow:
            self.backend = self._start()
        elif self.backend is None:
            self._opening = self._opening or _aside(self._start, f"open-{self.name}")
            if self._opening.done():
                opened, self._opening = self._opening, None
                self.backend = opened.result()
        return self.backend

    def read(self, backend: Backend, sources: Descriptors, targets: Slots, timeout_s: float) -> bytes:
        """A status for each."""
        began = time.monotonic()
        statuses, error = backend.read(sources, targets, timeout_s)
        if error is not None:
            self.close()
            self.failed(error)
        else:
            self.measured_at = time.monotonic()
            self.speed.add(len(targets), self.measured_at - began)
        return statuses

    def failed(self, why: str) -> None:
        """It is left alone for a while."""
        self._failures[self.name] += 1
        self.rests_until = time.monotonic() + REST_S
        log.warning("transfer: %s fails, and is left alone for %.0f s: %s", self.name, REST_S, why)

    def close(self) -> None:
        """From any thread."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(_close_opened)
        backend, self.backend = self.backend, None
        if backend is not None:
            backend.close()


def _aside(start: Callable[[], Backend], name: str) -> Future[Backend]:
    """In a thread of its own, which ends with it."""
    opening: Future[Backend] = Future()

    def run() -> None:
        try:
            opening.set_result(start())
        except TransferError as error:
            opening.set_exception(error)
        except Exception as error:  # Else it would be opened for ever.
            log.exception("transfer: this is a defect, please report it")
            opening.set_exception(TransferError(f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return opening


def _close_opened(opening: Future[Backend]) -> None:
    if opening.exception() is None:
        opening.result().close()


class Link:
    """Used from lanes; they take turns."""

    def __init__(
        self,
        offer: Offer,
        own: PageSlots,
        secret: str | None,
        failures: Counter[str],
        nixl: NixlPort | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`own`: the host tier's slots here. `failures`: of ways, counted there by name. `nixl`: this node's; None: not
        used. `tls`: None: nothing is encrypted."""
        self.offer = offer
        self.ways: list[Way] = []
        """In the order in which they are tried before anything was measured."""
        here = is_here(offer.shm)
        if here:
            self.ways.append(Way(ShmBackend, lambda: ShmBackend(offer, own, secret), failures))
        if nixl is not None and offer.nixl is not None:
            self.ways.append(Way(NixlBackend, lambda: NixlBackend(offer, own, nixl), failures))
        if offer.tcp:
            streams = 1 if here else STREAMS
            self.ways.append(Way(TcpBackend, lambda: TcpBackend(offer, own, secret, streams, tls), failures))
        self._turn = threading.Lock()
        self._closed = False

    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> bytes:
        """Pages of the holder to slots of this node, by the ways that can read them. A Status for each."""
        ends = time.monotonic() + timeout_s
        statuses = np.full(len(targets), Status.LOST, np.uint8)
        if not self._turn.acquire(timeout=timeout_s):
            return statuses.tobytes()
        try:
            for way in self._by_speed() * 2:  # what was damaged may have been so on its way
                if way.rests_until > time.monotonic():
                    continue
                missing = np.isin(statuses, (Status.LOST, Status.DAMAGED)) & np.isin(sources["tier"], way.tiers)
                lost = np.flatnonzero(missing)
                left_s = ends - time.monotonic()
                if left_s <= 0 or self._closed:
                    break
                if not len(lost):
                    continue
                try:
                    backend = way.open()
                except TransferError as error:
                    way.failed(str(error))
                    continue
                if backend is not None:
                    read = way.read(backend, sources[lost], targets[lost], left_s)
                    statuses[lost] = np.frombuffer(read, np.uint8)
        finally:
            self._turn.release()
        return statuses.tobytes()

    def close(self) -> None:
        """Ends what is being read."""
        self._closed = True
        for way in self.ways:
            way.close()

    def _by_speed(self) -> list[Way]:
        """Those that may work, the quickest first. One that was not measured lately is worth a try."""
        now = time.monotonic()

        def rate(way: Way) -> float:
            return way.speed.rate if way.measured_at > now - FRESH_S else float("inf")

        return sorted((way for way in self.ways if way.rests_until <= now), key=rate, reverse=True)
