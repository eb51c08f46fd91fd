"""Pages of another node, over shared memory and over TCP: the right ones, and never for longer than is waited for."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.agent.transfer.proxies import Damage, Proxy
from tests.agent.transfer.slabs import EPOCH, PAGE_BYTES, SECRET, generations, located, make, page, targets
from trunkline.agent.cache.pace import SHARE
from trunkline.agent.cache.slab import Slab, SlabError, attach
from trunkline.agent.transfer import listener, tcp
from trunkline.agent.transfer.backend import Backend, Status
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.offer import Offer
from trunkline.agent.transfer.shm import ShmBackend, ShmLending, is_here
from trunkline.agent.transfer.tcp import TcpBackend, TcpLending
from trunkline.kernels.core import Tls
from trunkline.shared.names import Tier

PAGES = 40
OK, CHANGED, ABSENT, LOST = Status.OK, Status.CHANGED, Status.ABSENT, Status.LOST


class Holder:
    """A slab that is lent both ways."""

    def __init__(self, tls: Tls | None = None) -> None:
        self.slab = make(PAGES)
        self.tcp = TcpLending("127.0.0.1", 0, [(Tier.HOST, self.slab.slots)], SECRET, EPOCH, tls)
        self.shm = ShmLending(self.slab, SECRET, EPOCH)
        self.offer = Offer(EPOCH, PAGE_BYTES, f"127.0.0.1:{self.tcp.port}", self.shm.name, encrypted=tls is not None)

    def close(self) -> None:
        self.tcp.close()
        self.shm.close()


@pytest.fixture
def holder() -> Iterator[Holder]:
    before = threading.active_count()
    holder = Holder()
    yield holder
    holder.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def open_backend(kind: str, offer: Offer, own: Slab, secret: str | None = SECRET) -> Backend:
    if kind == "shm":
        return ShmBackend(offer, own.slots, secret)
    return TcpBackend(offer, own.slots, secret, streams=3 if kind == "tcp of 3 streams" else 1)


kinds = pytest.mark.parametrize("kind", ["shm", "tcp", "tcp of 3 streams"])


@kinds
def test_pages_in_any_order_to_any_slots(kind: str, holder: Holder) -> None:
    own = make(PAGES, first=100)
    order = np.random.default_rng(1).permutation(PAGES).tolist()
    to = np.random.default_rng(2).permutation(PAGES).tolist()
    backend = open_backend(kind, holder.offer, own)
    result = backend.read(located(holder.slab, order), targets(to), 5.0)
    backend.close()
    assert result == (bytes(PAGES), None)
    for source, target in zip(order, to, strict=True):
        assert (page(own, target) == page(holder.slab, source)).all()


@kinds
def test_each_page_has_its_own_fate(kind: str, holder: Holder) -> None:
    own = make(6, first=100)
    sources = located(holder.slab, [1, 2, 3, 4, 5])
    sources["slot"][2] = PAGES
    sources["tier"][3] = Tier.DEVICE
    generations(holder.slab)[2] += 1
    page(holder.slab, 2)[:] = 99
    backend = open_backend(kind, holder.offer, own)
    result = backend.read(sources, targets([5, 4, 3, 2, 1]), 5.0)
    backend.close()
    assert result == (bytes([OK, CHANGED, ABSENT, ABSENT, OK]), None)
    assert (page(own, 5) == 1).all()
    assert (page(own, 1) == 5).all()
    assert (page(own, 0) == 100).all()


def test_memory_of_another_machine_is_not_tried(holder: Holder) -> None:
    assert is_here(holder.offer.shm)
    assert not is_here("trunkline-0123456789abcdef-0123456789abcdef")
    assert not is_here("")


@kinds
def test_nothing_asked_nothing_read(kind: str, holder: Holder) -> None:
    backend = open_backend(kind, holder.offer, make(1))
    assert backend.read(located(holder.slab, []), targets([]), 5.0) == (b"", None)
    backend.close()


def test_a_holder_whose_engine_computes_lends_at_a_share_of_its_time(holder: Holder) -> None:
    backend = open_backend("tcp", holder.offer, own := make(PAGES))
    holder.tcp.give_way(computing=True)
    assert holder.tcp.lender.share == SHARE
    everything = located(holder.slab, list(range(PAGES)))
    assert backend.read(everything, targets(list(range(PAGES))), 5.0) == (bytes(PAGES), None)
    assert (page(own, 7) == page(holder.slab, 7)).all()
    holder.tcp.give_way(computing=False)
    assert holder.tcp.lender.share == 0
    backend.close()


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_a_holder_that_closes_is_noticed(kind: str, holder: Holder) -> None:
    backend = open_backend(kind, holder.offer, own := make(2))
    holder.close()
    result = backend.read(located(holder.slab, [0]), targets([0]), 5.0)
    assert result.statuses == bytes([LOST])
    assert result.error
    backend.close()
    with pytest.raises(TransferError):
        open_backend(kind, holder.offer, own)


@kinds
def test_a_closed_backend_reads_nothing(kind: str, holder: Holder) -> None:
    backend = open_backend(kind, holder.offer, make(2))
    backend.close()
    backend.close()
    result = backend.read(located(holder.slab, [0]), targets([0]), 5.0)
    assert result.statuses == bytes([LOST])
    assert result.error


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_only_who_knows_the_secret(kind: str, holder: Holder, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TransferError):
        open_backend(kind, holder.offer, make(2), "another secret altogether")
    deadline = time.monotonic() + 5
    while "does not know" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "a reader of pages does not know this cluster's secret" in caplog.text


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_another_incarnation_or_page_size_is_refused(kind: str, holder: Holder) -> None:
    for offer in (
        Offer(EPOCH + 1, PAGE_BYTES, holder.offer.tcp, holder.offer.shm),
        Offer(EPOCH, PAGE_BYTES + 1, holder.offer.tcp, holder.offer.shm),
    ):
        with pytest.raises(OfferError):
            open_backend(kind, offer, make(2))
    with pytest.raises(OfferError):
        open_backend(kind, holder.offer, make(2, page_bytes=PAGE_BYTES - 1))


def test_a_holder_that_does_not_know_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        offer = Offer(EPOCH, PAGE_BYTES, f"127.0.0.1:{listening.getsockname()[1]}")

        def pretend(begin: bytes) -> None:
            peer, _ = listening.accept()
            with peer:
                peer.sendall(begin)
                peer.recv(64)
                peer.sendall(bytes(44))

        for begin, error in ((b"TKVDATA2" + bytes(32), "does not know"), (b"HTTP/1.1" + bytes(32), "lend")):
            thread = threading.Thread(target=pretend, args=(begin,))
            thread.start()
            with pytest.raises(OfferError, match=error):
                TcpBackend(offer, make(1).slots, SECRET)
            thread.join()


HELLO = 8 + 32 + 12 + 32
"""Bytes from the holder before the first page."""
FRAME = 16 + PAGE_BYTES
"""Bytes per page."""


def read_through(holder: Holder, damage: Damage, own: Slab, timeout_s: float = 5.0) -> tuple[bytes, str | None]:
    """Pages 0 to 9, with something in between."""
    with Proxy(holder.tcp.port, damage) as address:
        backend = TcpBackend(Offer(EPOCH, PAGE_BYTES, address), own.slots, SECRET)
        result = backend.read(located(holder.slab, list(range(10))), targets(list(range(10))), timeout_s)
        backend.close()
    return result


def test_one_flipped_bit_on_the_way_costs_one_page(holder: Holder) -> None:
    place = HELLO + 3 * FRAME + 2000

    def flip(offset: int, data: bytearray) -> bytearray:
        if offset <= place < offset + len(data):
            data[place - offset] ^= 16
        return data

    own = make(10, first=100)
    assert read_through(holder, flip, own) == (bytes([OK] * 3 + [Status.DAMAGED] + [OK] * 6), None)
    assert [int(page(own, number)[0]) for number in (0, 1, 2, 4, 9)] == [0, 1, 2, 4, 9]


def test_a_cut_in_the_middle_keeps_what_came(holder: Holder) -> None:
    own = make(10, first=100)
    statuses, error = read_through(
        holder, lambda offset, data: data if offset < HELLO + 4 * FRAME + 2000 else None, own
    )
    came = statuses.count(OK)
    assert 1 <= came < 10
    assert statuses == bytes([OK] * came + [LOST] * (10 - came))
    assert error


def test_silence_in_the_middle_ends_when_time_is_up(holder: Holder) -> None:
    silent = threading.Event()

    def hang(offset: int, data: bytearray) -> bytearray:
        if offset > HELLO + 4 * FRAME:
            silent.wait(60)
        return data

    with Proxy(holder.tcp.port, hang) as address:
        backend = TcpBackend(Offer(EPOCH, PAGE_BYTES, address), make(10).slots, SECRET)
        began = time.monotonic()
        result = backend.read(located(holder.slab, list(range(10))), targets(list(range(10))), 0.2)
        took = time.monotonic() - began
        silent.set()
        backend.close()
    assert result.statuses[0] == OK
    assert result.statuses[9] == LOST
    assert result.error
    assert took < 10


def test_a_trickle_does_not_stretch_the_time(holder: Holder) -> None:
    def trickle(offset: int, data: bytearray) -> bytearray:
        if offset > HELLO:
            time.sleep(0.05)  # for each 4 KiB: never silent
        return data

    statuses, error = read_through(holder, trickle, make(10, first=100), timeout_s=0.3)
    assert statuses[9] == LOST
    assert error


def test_close_ends_a_read_from_another_thread(holder: Holder) -> None:
    with Proxy(holder.tcp.port, lambda offset, data: data if offset < HELLO else bytearray()) as address:
        backend = TcpBackend(Offer(EPOCH, PAGE_BYTES, address), make(2).slots, SECRET)
        closing = threading.Timer(0.05, backend.close)
        closing.start()
        result = backend.read(located(holder.slab, [0]), targets([0]), 60.0)
        closing.join()
    assert result.statuses == bytes([LOST])


def test_a_reader_that_takes_nothing_is_given_up(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tcp, "STALL_S", 0.1)
    backend = TcpBackend(holder.offer, make(1).slots, SECRET)
    stream = backend._sockets[0]
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    many = located(holder.slab, list(range(PAGES)) * 200)
    stream.sendall(b"TKPQ" + len(many).to_bytes(4, "little") + many.tobytes())
    deadline = time.monotonic() + 10
    while holder.tcp._listener.connections and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holder.tcp._listener.connections == 0
    assert "lend-tcp: a connection ends: nothing was taken for 0.1 s" in caplog.messages
    backend.close()
    again = open_backend("tcp", holder.offer, own := make(1, first=9))
    assert again.read(located(holder.slab, [3]), targets([0]), 5.0).statuses == bytes([OK])
    assert (page(own, 0) == 3).all()
    again.close()


def test_one_connection_too_many_is_refused(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 1)
    first = open_backend("tcp", holder.offer, own := make(1))
    with pytest.raises(TransferError):
        open_backend("tcp", holder.offer, own)
    assert holder.tcp._listener.refused == 1
    first.close()


def test_the_rate_holds(holder: Holder) -> None:
    holder.tcp.lender.rate = 1_000_000
    backend = open_backend("tcp", holder.offer, make(PAGES))
    began = time.monotonic()
    assert backend.read(located(holder.slab, list(range(PAGES))), targets(list(range(PAGES))), 5.0)[1] is None
    # 40 pages of 5,000 bytes are to take 0.2 s, but for a burst.
    assert time.monotonic() - began > 0.19
    backend.close()


def test_memory_that_is_no_slab_or_could_shrink_is_refused() -> None:
    file = os.memfd_create("other", os.MFD_CLOEXEC)
    with pytest.raises(SlabError, match="shrink"):
        attach(file)
    slab = make(2)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(os.open(f"/proc/self/fd/{slab.file}", os.O_RDWR), 0)
    attached = attach(os.dup(slab.file))
    with pytest.raises(ValueError, match="only be read"):
        attached.slots.copy_from(slab.slots, located(slab, [0]), targets([0]))
    with pytest.raises(TypeError, match="read-only"):
        attached.pages[0] = 1
