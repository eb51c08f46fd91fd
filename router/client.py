"""Where a response goes."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from trunkline.router.counters import Outcome
from trunkline.router.scheduler.placement import Choice
from trunkline.router.trace import RequestTrace
from trunkline.shared.errors import RequestError


class Client(Protocol):
    """Of one request. `unframed`: the client speaks HTTP/1.0 and knows no chunks."""

    request_id: str
    unframed: bool

    def request_head(self, authority: bytes, size: int, fields: bytes) -> bytes:
        """The head of the request to a node, for a body of `size` bytes, with these fields (lines) as well."""

    def write_head(self, status: int, fields: bytes, choice: Choice, until_eof: bool, body: bytes) -> None:
        """`fields`: lines of the head, each with its CRLF in front. `until_eof`: the body ends with the connection."""

    write: Callable[[bytes], None]
    outlet: asyncio.Transport | None
    """What `write` writes to; None if it does more than that."""

    trace: RequestTrace | None

    def end(self, *, broken: bool = False) -> None:
        """The response is complete, in form at least: `broken`, it ends with an error."""

    def break_off(self, outcome: Outcome) -> None:
        """The response cannot be completed: the connection ends short of its framing, so that the client notices."""

    def refuse(self, error: RequestError) -> None:
        """Answers with an error; nothing was written yet."""
