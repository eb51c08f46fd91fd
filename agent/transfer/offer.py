"""What a holder says of the ways in which its pages can be read."""

import msgspec

from trunkline.shared.wire import Count


class Offer(msgspec.Struct, frozen=True):
    """Handed over by the holder when it is asked for pages."""

    epoch: Count
    """The holder's incarnation; where pages lie says nothing in another one."""
    page_bytes: Count
    tcp: str = ""
    """host:port of its pages; "": not offered."""
    shm: str = ""
    """Abstract socket that hands out its memory, of use on the same machine alone; "": not offered."""
