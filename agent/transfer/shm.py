"""Pages of another node on this machine: its host memory is mapped here, and read by copying.

The holder hands out its memory over an abstract Unix socket, read-only, to who proves to know the secret; the
connection stays open for as long as the holder lives. Reading takes no part of the holder.
"""

import os
import secrets
import socket
from pathlib import Path

import numpy as np

from trunkline.agent.cache.slab import Slab, SlabError, attach
from trunkline.agent.transfer import hello
from trunkline.agent.transfer.backend import Backend, Result, Slots, Status
from trunkline.agent.transfer.descriptors import Descriptors
from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.listener import Listener
from trunkline.agent.transfer.offer import Offer
from trunkline.kernels.core import PageSlots, hash64
from trunkline.shared.names import Tier

HELLO_S = 2.0


class ShmLending:
    """The holder's side: hands out its memory."""

    def __init__(self, slab: Slab, secret: str | None, epoch: int) -> None:
        """Raises OSError if there are no such sockets here."""
        self._slab, self._secret, self._epoch = slab, secret, epoch
        self.name = f"{_place()}-{secrets.token_hex(8)}"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(_address(self.name))
        except OSError:
            listening.close()
            raise
        self._listener = Listener("lend-shm", listening, self._serve)

    def close(self) -> None:
        """What was handed out stays readable for those who have it. Idempotent."""
        self._listener.close()

    def _serve(self, peer: socket.socket) -> None:
        peer.settimeout(HELLO_S)
        hello.lend(peer, self._secret, self._epoch, self._slab.slots.page_bytes)
        socket.send_fds(peer, [b"m"], [self._slab.file])
        peer.settimeout(None)
        peer.recv(1)  # until the reader goes, or `close`


class ShmBackend(Backend):
    """The reader's side."""

    name = "shm"
    tiers = frozenset({Tier.HOST})

    def __init__(self, offer: Offer, own: PageSlots, secret: str | None) -> None:
        """`own`: the host tier's slots here. Raises TransferError."""
        self._own = own
        self._holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._holder.settimeout(HELLO_S)
        try:
            self._holder.connect(_address(offer.shm))
            hello.borrow(self._holder, secret, offer.epoch, offer.page_bytes)
            self._slab = _attach(self._holder)
            if not self._slab.slots.page_bytes == offer.page_bytes == own.page_bytes:
                raise OfferError(f"its pages are of {self._slab.slots.page_bytes} bytes, ours of {own.page_bytes}")
        except OSError as error:
            self._holder.close()
            raise TransferError(f"no memory of the holder: {error}") from None
        except TransferError:
            self._holder.close()
            raise
        self._holder.setblocking(False)

    def read(self, sources: Descriptors, targets: Slots, timeout_s: float) -> Result:
        """Takes as long as copying does: `timeout_s` does not matter."""
        if error := self._gone():
            return Result(bytes([Status.LOST]) * len(targets), error)
        statuses = np.frombuffer(self._own.copy_from(self._slab.slots, sources.data, targets.data), np.uint8)
        return Result(np.where(sources["tier"] == Tier.HOST, statuses, np.uint8(Status.ABSENT)).tobytes())

    def close(self) -> None:
        self._holder.close()

    def _gone(self) -> str | None:
        """A holder that has ended renews nothing any more: what it left behind is not to be believed for long."""
        try:
            self._holder.recv(1)
        except BlockingIOError:
            return None
        except OSError as error:
            return str(error)
        return "the holder has ended"


def is_here(name: str) -> bool:
    """Whether a holder with a socket of this name is on this machine, and can be reached."""
    return name.startswith(f"{_place()}-")


def _place() -> str:
    """What this machine has to itself until its next start, with its network, for abstract sockets belong to one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return f"trunkline-{hash64(boot + os.readlink('/proc/self/ns/net').encode()):016x}"


def _attach(holder: socket.socket) -> Slab:
    """The memory that the holder hands over. Raises OSError and OfferError."""
    _, files, _, _ = socket.recv_fds(holder, 1, 1)
    if not files:
        raise OfferError("the holder hands over no memory")
    try:
        return attach(files[0])
    except SlabError as error:
        raise OfferError(str(error)) from None


def _address(name: str) -> str:
    return "\0" + name
