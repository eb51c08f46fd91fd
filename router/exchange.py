"""One request of a hot endpoint and its response, on the client's side. It stands where uvicorn has a request cycle."""

import asyncio
import http
import itertools
import os
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from trunkline.router import refusals
from trunkline.router.access_log import Entry
from trunkline.router.body import Prompt
from trunkline.router.context import Context
from trunkline.router.counters import Outcome, outcome_of
from trunkline.router.head import RequestHead
from trunkline.router.relay import Relay
from trunkline.router.request_log import Ended
from trunkline.router.scheduler.decision import Decision
from trunkline.router.scheduler.placement import Choice
from trunkline.router.tenants import Tenant
from trunkline.router.trace import RequestTrace, without_context
from trunkline.shared.body import Body
from trunkline.shared.errors import Overloaded, RequestError

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in http.HTTPStatus}
_ids = map((os.urandom(8).hex() + "-%x").__mod__, itertools.count(1))


class Edge(Protocol):
    """The client's connection."""

    transport: asyncio.Transport

    def finished(self, exchange: "Exchange", keep_alive: bool) -> None:
        """The response is written as a whole; without `keep_alive` the connection ends after it."""


class Exchange:
    """Collects a request, has it placed and relayed, writes the response. Is the relay's `Client`."""

    __slots__ = (
        "_body",
        "_complete",
        "_context",
        "_decision",
        "_edge",
        "_entry",
        "_error",
        "_forwarded",
        "_head",
        "_logged",
        "_owner",
        "_read",
        "_size",
        "_status",
        "_tenant",
        "_turn",
        "disconnected",
        "keep_alive",
        "outlet",
        "relay",
        "request_id",
        "response_complete",
        "trace",
        "unframed",
        "write",
    )

    def __init__(
        self,
        context: Context,
        edge: Edge,
        read: Callable[[Body], Prompt],
        head: RequestHead,
        size: int,
    ) -> None:
        """`size`: of the body as declared; 0: not declared."""
        self._context = context
        self._edge = edge
        self.write: Callable[[bytes], None] = edge.transport.write
        self.outlet: asyncio.Transport | None = edge.transport
        self._read = read
        self._head = head
        self._body: list[Body] = []
        self._size = 0
        self._complete = False
        self._status = 0
        """Of the response, once it began."""
        self._turn = False
        """Whether the responses before it on this connection are written."""
        self._error: RequestError | None = None
        self._tenant: Tenant
        """Whose request it is, once it was admitted."""
        self._owner = ""
        """The tenant's name, once it is known."""
        self._decision: Decision | None = None
        self._logged: Body | None = None
        """The body, if it is to be logged."""
        self._entry: Entry | None = None
        self.relay: Relay | None = None
        self.keep_alive = head.keep_alive
        self.unframed = head.unframed
        self.disconnected = False
        self.response_complete = False
        self.request_id = head.request_id or next(_ids)
        self._forwarded = b""
        """Header lines for the node, beside those that are its own."""
        context.counters.inflight += 1
        tracing = context.tracing
        self.trace = RequestTrace(tracing, head.target, head.fields, self.request_id) if tracing is not None else None
        try:
            self._admit(size)
        except RequestError as error:
            self._error = error

    @property
    def reading(self) -> bool:
        """Whether the request's body is still wanted."""
        return not (self._complete or self._error or self.response_complete)

    def begin(self) -> None:
        """Its turn on the connection has come."""
        self._turn = True
        if self._error is not None:
            self.refuse(self._error)
        elif self._complete:
            self._dispatch(self._whole())
        elif self._head.expects and not self._body:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def serve(self, body: Body) -> None:
        """Its turn has come, and the body is there as a whole: in place of `begin` and what follows."""
        self._turn = self._complete = True
        if self._error is None:
            self._dispatch(body)
        else:
            self.refuse(self._error)

    def on_body(self, data: Body) -> None:
        if self._error is not None or self.response_complete:
            return
        self._body.append(data)
        self._size += len(data)
        if self._size > self._context.settings.max_body_bytes:
            self.fail(self._too_large())

    def on_complete(self) -> None:
        if self._error is None and not self.response_complete:
            self._complete = True
            if self._turn:
                self._dispatch(self._whole())

    def fail(self, error: RequestError) -> None:
        """The request will not be served; answered when its turn comes."""
        self._error = error
        self._body.clear()
        if self._turn and not self.response_complete:
            self.refuse(error)

    def disconnect(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if not self.response_complete:
            if self.relay is not None:
                self.relay.cancel()
            self._finish(Outcome.LEFT)

    # The relay's client.

    def request_head(self, authority: bytes, size: int, fields: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self._head.target,
            authority,
            self._forwarded,
            fields,
            self.request_id.encode(),
            size,
        )

    def write_head(self, status: int, fields: bytes, choice: Choice, until_eof: bool, body: bytes) -> None:
        if until_eof or self.unframed:
            self.keep_alive = False
        self._status = status
        self._context.counters.responses[status] += 1
        self.write(
            b"%b%b\r\nx-trunkline-node: %b\r\nx-trunkline-matched-tokens: %d\r\nx-request-id: %b%b\r\n\r\n%b"
            % (
                _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status,
                fields,
                choice.node.name.encode(),
                choice.matched,
                self.request_id.encode(),
                b"" if self.keep_alive else b"\r\nconnection: close",
                body,
            )
        )

    def end(self, *, broken: bool = False) -> None:
        self._finish(Outcome.BROKEN if broken else outcome_of(self._status))
        self._edge.finished(self, self.keep_alive)

    def break_off(self, outcome: Outcome) -> None:
        self._finish(outcome)
        self._edge.finished(self, keep_alive=False)

    def refuse(self, error: RequestError) -> None:
        self._context.counters.responses[error.status] += 1
        if error.status in (408, 413) or (self._head.expects and not self._complete):
            self.keep_alive = False  # The rest of the body may never come, or be too long to wait for.
        self.write(refusals.response(error, request_id=self.request_id, keep_alive=self.keep_alive))
        self._status = error.status
        self._finish(outcome_of(error.status), error.message)
        self._edge.finished(self, self.keep_alive)

    # Own steps.

    def _admit(self, size: int) -> None:
        """Raises RequestError for what can be refused before the body is there."""
        context, head = self._context, self._head
        if size > context.settings.max_body_bytes:
            raise self._too_large()
        tenant = self._tenant = context.tenants.authenticate(head.authorization)
        if context.counters.inflight > context.settings.max_inflight:
            limit = context.settings.max_inflight
            raise Overloaded(f"the router has {limit} requests in flight, its --max-inflight", retry_after=1.0)
        self._owner = tenant.name
        forwarded = (head.fields if self.trace is None else without_context(head.fields)) + tenant.headers
        if head.authorization is not None and tenant.forwards_credentials:
            forwarded += b"authorization: %b\r\n" % head.authorization
        if self.unframed:
            forwarded += b"connection: close\r\n"
        self._forwarded = forwarded

    def _whole(self) -> Body:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    def _dispatch(self, body: Body) -> None:
        context = self._context
        if context.request_log is not None and context.request_log.bodies:
            self._logged = body
        try:
            prompt = self._read(body)
            candidates = context.registry.candidates(prompt.model)
            if not candidates:
                raise context.registry.missing(prompt.model)
        except RequestError as error:
            self.refuse(error)
            return
        tenant, admission, passage = self._tenant, context.admission, None
        if context.access_log is not None:
            self.write = self._entry = context.access_log.begin(prompt, tenant.salt, self.write)
            self.outlet = None  # What is written is counted.
        relief = admission.relief(tenant) if admission.fair else None
        begun = perf_counter()
        placement = context.scheduler.place(prompt, tenant.salt, candidates, relief)
        seconds = perf_counter() - begun
        self._decision = placement.decision
        context.decisions.add(self.request_id, placement.decision, seconds)
        if self.trace is not None:
            self.trace.placed(placement, seconds)
        if admission.fair:
            try:
                passage = admission.admit(tenant, prompt.priority, placement.tokens, self.request_id)
            except RequestError as error:
                placement.decision.refused(error)
                self.refuse(error)
                return
        self.relay = Relay(context, self, placement, body, prompt.priority, passage)
        self.relay.start()

    def _too_large(self) -> RequestError:
        return RequestError(f"the body is over the limit of {self._context.settings.max_body_bytes} bytes", status=413)

    def _finish(self, outcome: Outcome, error: str = "") -> None:
        """`error`: why it was refused. Of a response that is not whole the decision says why."""
        self.response_complete = True
        self.relay = None
        self._body.clear()
        context, decision = self._context, self._decision
        context.counters.inflight -= 1
        context.counters.outcomes[outcome] += 1
        if decision is not None:
            error = error or decision.error
        if context.request_log is not None:
            ended = Ended(self.request_id, self._owner, outcome, self._status, error, decision, self._logged)
            context.request_log.add(ended)
        if self.trace is not None:
            self.trace.ended(outcome, self._status, error)
        if self._entry is not None and self._context.access_log is not None:
            self._context.access_log.end(self._entry)
