"""Connections to nodes for clients that know no chunks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline.router.connection import Connection

if TYPE_CHECKING:
    from trunkline.router.pools import Pool


class UnframedConnection(Connection):
    """For clients that speak HTTP/1.0 and know no chunks: passes on the body without its framing. Used once."""

    unframed = True

    def __init__(self, pool: "Pool") -> None:
        self._pieces: list[bytes] = []
        super().__init__(pool)

    def unused(self) -> None:
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def framed_end(self, event: bytes) -> bytes | None:
        return b"\n\n" + event

    def _through(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        return lambda data: write(self._first(data))

    def _first(self, body: bytes) -> bytes:
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body
