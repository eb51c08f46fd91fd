"""The first frames of a connection for pages: both sides prove that they know the cluster's secret.

    holder -> reader   "TKVDATA2", 32 bytes of nonce
    reader -> holder   32 bytes of nonce, proof("data reader", both nonces)
    holder -> reader   epoch u64, page bytes u32, proof("data holder", both nonces, epoch, page bytes)

Numbers are little-endian; `proof.py` says what a proof is.
"""

import secrets
import struct
from typing import Protocol

from trunkline.agent.transfer.errors import OfferError, TransferError
from trunkline.agent.transfer.proof import NONCE_BYTES, PROOF_BYTES, agrees, proof

_MAGIC = b"TKVDATA2"
_HOLDER = struct.Struct("<QI")


class Wire(Protocol):
    """A socket with a timeout, or a `PageStream`."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...


def lend(peer: Wire, secret: str | None, epoch: int, page_bytes: int) -> None:
    """The holder's side. Raises TransferError if the reader does not know the secret, OSError if it goes."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    peer.sendall(_MAGIC + nonce)
    answer = receive(peer, NONCE_BYTES + PROOF_BYTES)
    nonces = nonce + answer[:NONCE_BYTES]
    if not agrees(answer[NONCE_BYTES:], proof(secret, b"data reader", nonces)):
        raise TransferError("a reader of pages does not know this cluster's secret")
    said = _HOLDER.pack(epoch, page_bytes)
    peer.sendall(said + proof(secret, b"data holder", nonces, said))


def borrow(holder: Wire, secret: str | None, epoch: int, page_bytes: int) -> None:
    """The reader's side. Raises OfferError if the holder is not the one expected, OSError if it goes."""
    begin = receive(holder, len(_MAGIC) + NONCE_BYTES)
    if not begin.startswith(_MAGIC):
        raise OfferError("who answers does not lend pages")
    nonce = secrets.token_bytes(NONCE_BYTES)
    nonces = begin[len(_MAGIC) :] + nonce
    holder.sendall(nonce + proof(secret, b"data reader", nonces))
    answer = receive(holder, _HOLDER.size + PROOF_BYTES)
    said = answer[: _HOLDER.size]
    if not agrees(answer[_HOLDER.size :], proof(secret, b"data holder", nonces, said)):
        raise OfferError("the holder does not know this cluster's secret")
    if _HOLDER.unpack(said) != (epoch, page_bytes):
        raise OfferError("the holder has restarted, or its pages are of another size than it said")


def receive(peer: Wire, size: int) -> bytes:
    """Exactly so many bytes. Raises ConnectionError if there are fewer."""
    data = bytearray()
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed early")
        data += more
    return bytes(data)
