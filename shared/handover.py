"""How a node that drains hands its warm prefixes to others, through the routers.

    router                                  node that drains                 another node
      │ ── what next? what came of the last ──> │
      │ <── prefixes, each told to one router ─ │
      │ ── pull this one, from there ────────────────────────────────────────> │
      │                                         │ <──── pages, as in any pull ──│
      │ <── so many tokens are here ────────────────────────────────────────── │

JSON over HTTP, between members of a cluster. Fields may be added.
"""

from typing import Annotated

import msgspec

from trunkline.shared.names import HEADER_SALT

DRAIN_PATH = "/trunkline/drain"
HANDOVER_PATH = "/trunkline/handover"
PREFIXES_PATH = "/trunkline/prefixes"
"""Below it, by the key of its last page in hex, what a node holds: a WarmPrefix."""
MAX_OFFER_BYTES = 64 << 20
"""A prefix of a million tokens is about ten."""


class Handed(msgspec.Struct, frozen=True):
    """What became of a prefix: so many tokens of it are elsewhere."""

    id: str
    tokens: int


class Ask(msgspec.Struct, frozen=True):
    """A router asks for at most so many prefixes, and says what came of those that it was told of before."""

    most: int
    done: list[Handed] = []


class WarmPrefix(msgspec.Struct, frozen=True):
    """Whole pages that the node holds. As in the body of an order to pull them."""

    id: str
    """The key of its last page, in hex."""
    salt: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,64}\\Z")]
    """Of the tenant, in hex."""
    prompt: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]
    """Token ids."""
    text_keys: bytes
    text_depths: bytes

    def order(self, timeout_s: float) -> bytes:
        """The body of an order to pull it."""
        told = {"prompt": self.prompt, "text_keys": self.text_keys, "text_depths": self.text_depths}
        return msgspec.json.encode({**told, "timeout": timeout_s})

    def headers(self) -> bytes:
        """Whole lines that say whose it is."""
        return f"{HEADER_SALT}: {self.salt}\r\n".encode() if self.salt else b""


class Offer(msgspec.Struct, frozen=True):
    """What a router is told to bring elsewhere, those first that were used last."""

    prefixes: list[WarmPrefix]
    over: bool
    """Nothing will follow."""
    left_s: float
    """Until the node waits no longer."""


class DrainStatus(msgspec.Struct, frozen=True):
    """How far a node is with draining."""

    draining: bool
    running: int
    """Sequences that are still computed."""
    offered: int = 0
    """Prefixes that routers were told of."""
    handed: int = 0
    """Of these, those that are elsewhere now, in whole or in part."""
    tokens: int = 0
    """Of these."""
    over: bool = True
    """Nothing more is handed on."""
