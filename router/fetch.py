"""A small request to a node over a connection of its own. A general HTTP client costs milliseconds of CPU for each."""

import asyncio
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from trunkline.router.connection import Connection
from trunkline.router.node import Node
from trunkline.router.pools import Pool
from trunkline.router.receiver import NodeFailure
from trunkline.router.unframed import UnframedConnection
from trunkline.shared.errors import UNDECODABLE, TrunklineError

CONNECT_S = 3.0
MAX_MESSAGE = 200
"""Characters of what a node says is wrong: it goes to logs and clients."""
_T = TypeVar("_T")


class OrderFailed(TrunklineError):
    """A node did not do as it was told: it refused, or did not answer."""


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


async def order(
    url: str, kind: type[_T], limit: int, deadline: float, headers: bytes, *, method: bytes = b"POST", body: bytes = b""
) -> _T:
    """Tells a node something. Its answer, of `kind`; `deadline`: seconds for all of it, the rest as `fetch`.

    Raises OrderFailed.
    """
    try:
        async with asyncio.timeout(deadline):
            status, answer = await fetch(url, limit, CONNECT_S, headers, method=method, body=body)
    except TimeoutError:
        raise OrderFailed(f"no answer within {deadline:g} s") from None
    except NodeFailure as failure:
        raise OrderFailed(str(failure)) from None
    if status != HTTPStatus.OK:
        raise OrderFailed(f"answers {status}: {message_of(answer)}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE as error:
        raise OrderFailed(f"its answer does not decode: {error}") from None


def message_of(answer: bytes) -> str:
    """What a node says is wrong."""
    try:
        return str(msgspec.json.decode(answer)["error"]["message"])[:MAX_MESSAGE]
    except (*UNDECODABLE, KeyError, TypeError):
        return answer[:MAX_MESSAGE].decode(errors="replace").strip()


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
