"""How two nodes show each other that they belong to one cluster, without saying its secret.

Each side hashes the nonces of both with the secret, under a name of its own: what it was told it cannot hand back, and
what was said once is of no use again. Nodes that have no secret use the empty one, and prove nothing.
"""

import hashlib
import hmac

NONCE_BYTES = PROOF_BYTES = 32


def proof(secret: str | None, role: bytes, *said: bytes) -> bytes:
    """What whoever knows the secret says; `said`: the holder's nonce, the reader's, and what else is to be believed."""
    named = b"trunkline transfer 1: " + role + b"\0"
    return hmac.digest((secret or "").encode(), named + b"".join(said), hashlib.sha256)


def agrees(given: bytes, expected: bytes) -> bool:
    """Whether a proof is the one that is due; takes as long either way."""
    return hmac.compare_digest(given, expected)
