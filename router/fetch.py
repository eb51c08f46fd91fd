"""A small request to a node over a connection of its own. A general HTTP client costs milliseconds of CPU for each."""

import asyncio
from urllib.parse import urlsplit

from trunkline.router.connection import Connection, NodeFailure
from trunkline.router.node import Node
from trunkline.router.pools import Pool
from trunkline.router.unframed import UnframedConnection


async def fetch(
    url: str, limit: int, deadline: float, headers: bytes = b"", *, method: bytes = b"GET", body: bytes = b""
) -> tuple[int, bytes]:
    """Status and body. `deadline` in seconds is for the connection; the rest is the caller's. `headers`: whole lines.
    `body`: JSON to send.

    Raises NodeFailure for what is no answer, and for a body of more than `limit` bytes.
    """
    parts = urlsplit(url)
    pool = Pool(Node(0, f"{parts.scheme}://{parts.netloc}"), max_idle=0, connect_deadline=deadline)
    head = b"%b %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n%b" % (
        method,
        parts.path.encode(),
        pool.authority,
        headers,
    )
    if method != b"GET":
        head += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    question = _Question(head + b"\r\n", body, limit)
    try:
        pool.connect(question, UnframedConnection)
        return await question.answer
    finally:
        if question.connection is not None:
            question.connection.abort()
        await pool.close()


class _Question:
    """Receives one answer as a whole."""

    def __init__(self, head: bytes, content: bytes, limit: int) -> None:
        self.connection: Connection | None = None
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._head, self._content = head, content
        self._limit = limit
        self._status = 0
        self._body = bytearray()

    def on_connected(self, connection: Connection) -> None:
        self.connection = connection
        connection.send(self, self._head, self._content)

    def on_head(self, status: int, fields: bytes, until_eof: bool, body: bytes) -> None:
        self._status = status
        if self.connection is not None:
            self.connection.splice(self._take)
        self._take(body)

    def on_end(self) -> None:
        if not self.answer.done():
            self.answer.set_result((self._status, bytes(self._body)))

    def on_failure(self, failure: NodeFailure) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)

    def _take(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit:
            self.on_failure(NodeFailure(f"more than {self._limit} bytes"))
            if self.connection is not None:
                self.connection.abort()
