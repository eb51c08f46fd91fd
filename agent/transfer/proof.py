"""How two nodes show each other that they belong to one cluster, without saying its secret.

Each hashes both nonces with the secret, under a name of its own, so that neither can hand back what it was told. A node
without a secret proves nothing, and asks for nothing.
"""

import hashlib
import hmac


class Prover:
    """Of one node."""

    def __init__(self, secret: str | None) -> None:
        """None: the node belongs to no cluster, or TLS says who does."""
        self._secret = secret.encode() if secret is not None else None

    def holder(self, holder_nonce: bytes, reader_nonce: bytes) -> bytes:
        """What a holder says; empty without a secret."""
        return self._proof(b"trunkline transfer 1: holder\0", holder_nonce, reader_nonce)

    def reader(self, holder_nonce: bytes, reader_nonce: bytes) -> bytes:
        """What a reader says; empty without a secret."""
        return self._proof(b"trunkline transfer 1: reader\0", holder_nonce, reader_nonce)

    def _proof(self, role: bytes, *nonces: bytes) -> bytes:
        if self._secret is None:
            return b""
        return hmac.digest(self._secret, role + b"".join(nonces), hashlib.sha256)


def agrees(given: bytes, expected: bytes) -> bool:
    """Whether a proof is the one that is due; takes as long either way. A secret that only one of them has is a
    disagreement."""
    return hmac.compare_digest(given, expected)
