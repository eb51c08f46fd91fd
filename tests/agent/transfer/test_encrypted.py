"""Pages in TLS: whole, hidden on the way, and for nobody without a certificate of the cluster's authority."""

import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.agent.transfer.proxies import Proxy
from tests.agent.transfer.slabs import SECRET, located, make, page, targets
from tests.agent.transfer.test_backends import PAGES, Holder
from trunkline.agent.transfer import tcp
from trunkline.agent.transfer.backend import Status
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.link import Link
from trunkline.agent.transfer.settings import TlsFiles
from trunkline.agent.transfer.tcp import TcpBackend
from trunkline.kernels.core import PageStream, Tls
from trunkline.loadtest.bench.transfer.certificates import certificates

ALL = list(range(PAGES))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "cluster": certificates(folder, "cluster"),
        "stranger": certificates(folder, "stranger"),
        "expired": certificates(folder, "expired", days=-1),
    }


@pytest.fixture
def open_holder(files: dict[str, TlsFiles]) -> Iterator[Callable[[str], Holder]]:
    made: list[Holder] = []

    def open_one(certificate: str) -> Holder:
        made.append(Holder(files[certificate].for_pages()))
        return made[-1]

    yield open_one
    for holder in made:
        holder.close()


@pytest.fixture
def holder(open_holder: Callable[[str], Holder]) -> Holder:
    return open_holder("cluster")


@pytest.fixture
def tls(files: dict[str, TlsFiles]) -> Tls:
    return files["cluster"].for_pages()


def said(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    """In a line of its own, soon."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if lines := [line for line in caplog.messages if what in line]:
            return len(lines) == 1
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("streams", [1, 3])
def test_pages_in_any_order_to_any_slots(holder: Holder, tls: Tls, streams: int) -> None:
    own = make(PAGES, first=100)
    order, to = (np.random.default_rng(seed).permutation(PAGES).tolist() for seed in (1, 2))
    backend = TcpBackend(holder.offer, own.slots, SECRET, streams, tls)
    for _ in range(3):
        assert backend.read(located(holder.slab, order), targets(to), 5.0) == (bytes(PAGES), None)
    backend.close()
    for source, target in zip(order, to, strict=True):
        assert (page(own, target) == page(holder.slab, source)).all()


@pytest.mark.parametrize("encrypted", [True, False])
def test_nothing_of_a_page_is_seen_on_the_way(holder: Holder, tls: Tls, encrypted: bool) -> None:
    seen = bytearray()

    def look(_: int, data: bytearray) -> bytearray:
        seen.extend(data)
        return data

    if not encrypted:
        holder = Holder()
    with Proxy(holder.tcp.port, look) as address:
        offer = replace(holder.offer, tcp=address)
        backend = TcpBackend(offer, make(PAGES).slots, SECRET, 1, tls if encrypted else None)
        assert backend.read(located(holder.slab, ALL), targets(ALL), 5.0) == (bytes(PAGES), None)
        backend.close()
    assert len(seen) > PAGES * 5000
    assert (bytes(page(holder.slab, 7)[:64]) in seen) is not encrypted
    assert (b"TKVDATA2" in seen) is not encrypted
    if not encrypted:
        holder.close()


def test_a_bit_flipped_on_the_way_ends_the_connection(holder: Holder, tls: Tls) -> None:
    def flip(offset: int, data: bytearray) -> bytearray:
        if offset > 50_000:
            data[-1] ^= 1
        return data

    with Proxy(holder.tcp.port, flip) as address:
        backend = TcpBackend(replace(holder.offer, tcp=address), own := make(PAGES, first=100).slots, SECRET, 1, tls)
        statuses, error = backend.read(located(holder.slab, ALL), targets(ALL), 5.0)
        backend.close()
    assert own.count == PAGES
    assert set(statuses) == {Status.OK, Status.LOST}
    assert "decrypt" in str(error)


def test_a_trickle_does_not_stretch_the_time(holder: Holder, tls: Tls) -> None:
    def trickle(offset: int, data: bytearray) -> bytearray:
        if offset > 20_000:
            time.sleep(0.05)  # for each 4 KiB, of which a record has several
        return data

    with Proxy(holder.tcp.port, trickle) as address:
        backend = TcpBackend(replace(holder.offer, tcp=address), make(PAGES).slots, SECRET, 1, tls)
        statuses, error = backend.read(located(holder.slab, ALL), targets(ALL), 0.3)
        backend.close()
    assert statuses[-1] == Status.LOST
    assert error == "not everything came within 0.3 s"


@pytest.mark.parametrize(
    ("holders", "readers", "reader_says", "holder_says"),
    [
        (
            "cluster",
            "stranger",
            "no connection to .*: invalid peer certificate: UnknownIssuer",
            "fatal alert: UnknownCA",
        ),
        ("expired", "expired", "no connection to .*: invalid peer certificate: ", "fatal alert: CertificateExpired"),
    ],
)
def test_a_certificate_that_is_not_good_is_named_on_both_sides(
    open_holder: Callable[[str], Holder],
    files: dict[str, TlsFiles],
    caplog: pytest.LogCaptureFixture,
    holders: str,
    readers: str,
    reader_says: str,
    holder_says: str,
) -> None:
    holder = open_holder(holders)
    with pytest.raises(TransferError, match=reader_says):
        TcpBackend(holder.offer, make(1).slots, SECRET, 1, files[readers].for_pages())
    assert said(caplog, "lend-tcp: no TLS with a reader at 127.0.0.1 port ")
    assert said(caplog, holder_says)


def test_a_readers_own_certificate_is_looked_at_too(
    holder: Holder, files: dict[str, TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    """It trusts the holder's authority, but another one has signed its own."""
    cluster, stranger = files["cluster"], files["stranger"]
    mixed = TlsFiles(stranger.certificate, stranger.key, cluster.authority).for_pages()
    with pytest.raises(TransferError, match=r"no connection to .*: received fatal alert: "):
        TcpBackend(holder.offer, make(1).slots, SECRET, 1, mixed)
    assert said(caplog, "no TLS with a reader at 127.0.0.1 port ")
    assert said(caplog, "invalid peer certificate: UnknownIssuer")


def test_who_shows_no_certificate_is_told_nothing(holder: Holder, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", holder.tcp.port), 5.0) as bare,
        context.wrap_socket(bare) as peer,
        pytest.raises(ssl.SSLError),
    ):
        peer.recv(1)
    assert said(caplog, "peer sent no certificates")


def test_who_speaks_no_tls_is_told_nothing(holder: Holder, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TransferError, match="no connection to"):
        TcpBackend(replace(holder.offer, encrypted=False), make(1).slots, SECRET)
    assert said(caplog, "no TLS with a reader at 127.0.0.1 port ")


def test_a_reader_that_goes_amid_the_handshake_is_named(
    holder: Holder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, gone = threading.Event(), threading.Event()

    def handshake(*arguments: Any, **flags: Any) -> PageStream:
        begins.set()
        gone.wait(5.0)
        return PageStream(*arguments, **flags)

    monkeypatch.setattr(tcp, "PageStream", handshake)
    with socket.create_connection(("127.0.0.1", holder.tcp.port), 5.0) as peer:
        port = peer.getsockname()[1]
        assert begins.wait(5.0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, and no end
    gone.set()
    assert said(caplog, f"no TLS with a reader at 127.0.0.1 port {port}: Connection reset by peer")


def test_both_encrypt_or_neither(holder: Holder, tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OfferError, match="it encrypts pages, which this node does not"):
        TcpBackend(holder.offer, make(1).slots, SECRET)
    link = Link(replace(holder.offer, encrypted=False, shm=""), make(1).slots, SECRET, failures := Counter(), tls=tls)
    assert link.read(located(holder.slab, [0]), targets([0]), 5.0) == bytes([Status.LOST])
    assert failures == {"tcp": 1}
    assert said(caplog, "tcp fails, and is left alone for 30 s: its pages would come unencrypted")
    link.close()
