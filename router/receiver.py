"""Who waits for a node's response, and what it hears where none comes."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trunkline.router.connection import Connection


class NodeFailure(Exception):
    """A node did not answer as it should. `refused`: nothing listens there, so its process and cache are gone."""

    def __init__(self, message: str, *, timeout: bool = False, refused: bool = False, stale: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout
        self.refused = refused
        self.stale = stale
        """A connection that was kept open turned out to be closed: another one may well work."""


class OutOfFiles(NodeFailure):
    """No connection could be opened, for the router has no file descriptor left. That says nothing about the node."""


class Receiver(Protocol):
    """Who waits for a response. Called on the event loop, in this order; nothing comes after the last two."""

    def on_connected(self, connection: "Connection") -> None: ...

    def on_head(self, status: int, fields: bytes, until_eof: bool, body: bytes) -> None:
        """`fields`: lines of the head that travel on, each with its CRLF in front. `until_eof`: the body ends with the
        connection. `body`: what of it came along, framing included.

        A receiver that wants the rest calls `splice`.
        """

    def on_end(self) -> None: ...

    def on_failure(self, failure: NodeFailure) -> None: ...
