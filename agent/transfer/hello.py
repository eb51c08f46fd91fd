"""The first frames of a connection for pages: both sides prove that they know the cluster's secret.

    holder -> reader   "TKVDATA1", 32 bytes of nonce
    reader -> holder   32 bytes of nonce, HMAC-SHA256(secret, "reader" + both nonces)
    holder -> reader   epoch u64, page bytes u32, HMAC-SHA256(secret, "holder" + both nonces + epoch + page bytes)

Numbers are little-endian. Without a secret (on loopback, see `--transfer-host`) the key is empty. Sockets have
timeouts.
"""

import hmac
import secrets
import socket
import struct

from trunkline.agent.transfer.errors import OfferError, TransferError

_MAGIC = b"TKVDATA1"
_NONCE_BYTES = _PROOF_BYTES = 32
_HOLDER = struct.Struct("<QI")


def lend(peer: socket.socket, secret: str | None, epoch: int, page_bytes: int) -> None:
    """The holder's side. Raises TransferError if the reader does not know the secret, OSError if it goes."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(_MAGIC + nonce)
    answer = receive(peer, _NONCE_BYTES + _PROOF_BYTES)
    nonces = nonce + answer[:_NONCE_BYTES]
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(secret, b"reader" + nonces)):
        raise TransferError("a reader of pages does not know this cluster's secret")
    said = _HOLDER.pack(epoch, page_bytes)
    peer.sendall(said + _proof(secret, b"holder" + nonces + said))


def borrow(holder: socket.socket, secret: str | None, epoch: int, page_bytes: int) -> None:
    """The reader's side. Raises OfferError if the holder is not the one expected, OSError if it goes."""
    begin = receive(holder, len(_MAGIC) + _NONCE_BYTES)
    if not begin.startswith(_MAGIC):
        raise OfferError("who answers does not lend pages")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    nonces = begin[len(_MAGIC) :] + nonce
    holder.sendall(nonce + _proof(secret, b"reader" + nonces))
    answer = receive(holder, _HOLDER.size + _PROOF_BYTES)
    said = answer[: _HOLDER.size]
    if not hmac.compare_digest(answer[_HOLDER.size :], _proof(secret, b"holder" + nonces + said)):
        raise OfferError("the holder does not know this cluster's secret")
    if _HOLDER.unpack(said) != (epoch, page_bytes):
        raise OfferError("the holder has restarted, or its pages are of another size than it said")


def receive(peer: socket.socket, size: int) -> bytes:
    """Exactly so many bytes. Raises ConnectionError if there are fewer."""
    data = bytearray()
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed early")
        data += more
    return bytes(data)


def _proof(secret: str | None, said: bytes) -> bytes:
    return hmac.digest((secret or "").encode(), said, "sha256")
