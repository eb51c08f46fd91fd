"""What a holder says of the ways in which its pages can be read."""

import msgspec

from trunkline.shared.wire import Count

GENERATION_BYTES = 4


class NixlRegion(msgspec.Struct, frozen=True):
    """One tier's slots in the holder's memory: `slots` pages from address `pages` on, `stride` bytes apart, and the
    generation of each from `generations` on."""

    tier: Count
    pages: Count
    generations: Count
    slots: Count
    stride: Count

    @property
    def possible(self) -> bool:
        """Whether each of its addresses is one."""
        last = max(self.pages + self.slots * self.stride, self.generations + self.slots * GENERATION_BYTES)
        return last < 1 << 63


class NixlOffer(msgspec.Struct, frozen=True):
    """What NIXL needs to read there."""

    metadata: bytes
    """Of the holder's NIXL agent."""
    regions: tuple[NixlRegion, ...]


class Offer(msgspec.Struct, frozen=True):
    """Handed over by the holder when it lets a reader in."""

    epoch: Count
    """The holder's incarnation; where pages lie says nothing in another one."""
    page_bytes: Count
    tcp: str = ""
    """host:port of its pages; "": not offered."""
    shm: str = ""
    """Abstract socket that hands out its memory; its name says on which machine that is of use. "": not offered."""
    nixl: NixlOffer | None = None
    """None: not offered."""
    key: str = ""
    """Secret of the connections for pages, where TLS says who may know it; "": it is the cluster's."""
    encrypted: bool = False
    """Whether pages pass at `tcp` in TLS."""

    def at(self, host: str) -> "Offer":
        """As who has asked at `host` reaches it: an unspecified host is that one."""
        offered, _, port = self.tcp.rpartition(":")
        unspecified = offered in ("0.0.0.0", "[::]")  # noqa: S104 - nothing is bound
        return msgspec.structs.replace(self, tcp=f"{host}:{port}") if unspecified else self
