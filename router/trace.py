"""The spans of one request: as a whole, its queue, its placement, and each try at a node."""

import re
import time
from typing import TYPE_CHECKING

from trunkline.router.counters import Outcome
from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.shared.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_CONTEXT = re.compile(rb"(traceparent|tracestate): ([^\r]*)\r\n")


class RequestTrace:
    """Used on the event loop only. The node is told of the try that it serves, so that its spans hang there."""

    __slots__ = ("_placed_ns", "_root", "_tracing", "_try")

    def __init__(self, tracing: Tracing, target: bytes, fields: bytes, request_id: str) -> None:
        """`fields`: lines of the head. The client's span, if it is named there, is the parent."""
        self._tracing = tracing
        given = {name.decode(): value.decode("latin-1") for name, value in _CONTEXT.findall(fields)}
        name = f"POST {target.partition(b'?')[0].decode('latin-1')}"
        self._root: Span = tracing.request(name, given, {"trunkline.request_id": request_id})
        self._try: Span | None = None
        self._placed_ns = time.time_ns()

    def placed(self, placement: Placement, seconds: float) -> None:
        """It was ranked just now, which took so long."""
        best = placement.choice(0)
        self._placed_ns = now = time.time_ns()
        attributes: dict[str, str | int] = {
            "trunkline.model": placement.decision.model,
            "trunkline.node": best.node.name,
            "trunkline.prompt_tokens": placement.tokens,
            "trunkline.matched_tokens": best.matched,
            "trunkline.candidates": placement.ranked,
        }
        self._tracing.stage("place", self._root, now - round(seconds * 1e9), now, attributes)

    def queued(self) -> None:
        """It had to pass the admission, and does so now."""
        self._tracing.stage("queue", self._root, self._placed_ns, time.time_ns(), {})

    def sent(self, choice: Choice) -> bytes:
        """A try at a node begins; the one before it, over a connection that turned out to be closed, was none. Returns
        lines for the head of its request."""
        self._end_try("")
        attributes: dict[str, str | int] = {
            "trunkline.node": choice.node.name,
            "trunkline.matched_tokens": choice.matched,
        }
        self._try, headers = self._tracing.call("relay", self._root, attributes)
        return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()

    def began(self, status: int) -> None:
        """The response."""
        if self._try is not None:
            self._try.add_event("first byte", {"http.response.status_code": status})

    def failed(self, reason: str) -> None:
        """The try."""
        self._end_try(reason)

    def ended(self, outcome: Outcome, status: int, error: str) -> None:
        """The request."""
        self._end_try(error)
        self._root.set_attribute("trunkline.outcome", outcome.value)
        if status:
            self._root.set_attribute("http.response.status_code", status)
        self._tracing.end(self._root, error)

    def _end_try(self, error: str) -> None:
        if self._try is not None:
            self._tracing.end(self._try, error)
            self._try = None


def without_context(fields: bytes) -> bytes:
    """Lines of a head, but for those that name a span: another one is named to the node."""
    return _CONTEXT.sub(b"", fields)
