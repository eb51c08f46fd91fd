"""Carries one request to a node and its response back, trying the next-ranked node while nothing has come back."""

import logging
from math import inf
from time import monotonic

import msgspec

from trunkline.router.admission.passage import Passage
from trunkline.router.client import Client
from trunkline.router.connection import Connection
from trunkline.router.context import Context
from trunkline.router.counters import Outcome
from trunkline.router.head import is_event_stream
from trunkline.router.nodes import NodeState
from trunkline.router.receiver import NodeFailure, OutOfFiles
from trunkline.router.scheduler.placement import Choice, Placement
from trunkline.router.scheduler.scheduler import Ticket
from trunkline.router.unframed import UnframedConnection
from trunkline.shared.body import Body
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import HEADER_LEAD, HEADER_PULL_FROM

log = logging.getLogger("trunkline.router.relay")

LOOK_S = 2.0
"""How often a request that hears nothing looks whether its node is known to be down, which a hung one soon is."""
MOVE_ON = frozenset((429, 502, 503))
"""Statuses of a node that has no room or no engine now: another one may have. The last one's answer stands."""
_GRACE_S = 1.0
"""Connecting has a deadline of its own, which comes first."""


class Relay:
    """One request under way. Ends with exactly one of the client's last three methods, or with `cancel`.

    Used on the event loop only.
    """

    __slots__ = (
        *("_body", "_client", "_context", "_decision", "_passage", "_placement", "_priority"),
        *("_choice", "_connection", "_ticket", "_try"),
        *("_blocked", "_done", "_fields", "_limit", "_paused", "_started", "deadline"),
    )

    def __init__(
        self,
        context: Context,
        client: Client,
        placement: Placement,
        body: Body,
        priority: int,
        passage: Passage | None,
    ) -> None:
        self._context = context
        self._client = client
        self._placement = placement
        self._decision = placement.decision
        self._priority = priority
        self._passage = passage
        """Past the admission. None: it has nothing to do with this request."""
        self._body = body
        """Kept until the response begins."""
        self._try = 0
        self._choice = placement.choice(0)
        self._ticket: Ticket | None = None
        self._connection: Connection | None = None
        self._fields: bytes | None = None
        """Of the response, once it began."""
        self._started = monotonic()
        self._paused = False
        self._blocked = False
        """The core has the stream, and waits for the client."""
        self._done = False
        self._limit = self.deadline = inf

    def start(self) -> None:
        self._context.ticker.watch(self)
        choice = self._choice
        if self._passage is not None or choice.load.full:
            choice = self._context.admission.prefer(self._admitted(), self._placement)
        self._begin(choice)

    def cancel(self) -> None:
        """The client is gone."""
        self._decision.error = "the client left"
        self._close()

    def abandon(self) -> None:
        """The router stops."""
        error = Overloaded("the router is shutting down", retry_after=1.0, status=503)
        if self._fields is not None:
            self._end_with_error(error)
        else:
            self.refuse(error)

    def pause(self) -> None:
        """The client reads more slowly than the node writes."""
        self._paused = True
        self.deadline = monotonic() + self._context.settings.deadlines.stalled_client
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        self._await(self._context.settings.deadlines.idle)
        if self._connection is not None:
            self._connection.resume()

    def expire(self) -> None:
        """A deadline has passed."""
        connection = self._connection
        if self._paused:
            self._give_up_client()
            return
        if self._passage is not None and self._passage.held:
            self.refuse(self._context.admission.expired(self._passage))
            return
        deadlines = self._context.settings.deadlines
        if connection is not None and connection.progressed():
            self._blocked = False
            self._await(deadlines.idle)
            return
        if connection is not None and connection.blocked:
            if self._blocked:
                self._give_up_client()
            else:
                self._blocked = True
                self.deadline = monotonic() + deadlines.stalled_client
            return
        down = self._choice.node.state is NodeState.DOWN
        if not down and monotonic() < self._limit:
            self.deadline = min(self._limit, monotonic() + LOOK_S)
            return
        if down:
            what = "stopped answering"
        else:
            what = "did not begin to respond in time" if self._fields is None else "stalled in its response"
        if connection is not None:
            connection.abort()
        self.on_failure(NodeFailure(what, timeout=True))

    # What the connection to the node says.

    def on_connected(self, connection: Connection) -> None:
        if self._done or self._connection is not None:
            connection.unused()
            return
        self._connection = connection
        self._await(self._context.settings.deadlines.first_byte)
        head = self._client.request_head(connection.authority, len(self._body), self._told())
        connection.send(self, head, self._body)

    def _told(self) -> bytes:
        """What the node alone is told: from whom to pull pages, by how much the tenant is behind, whose span it is."""
        passage, told = self._passage, b""
        if self._choice.pull_from is not None and (pull := self._choice.pull) is not None:
            told = f"{HEADER_PULL_FROM}: {pull}\r\n".encode()
        if passage is not None and passage.lead_s:
            told += f"{HEADER_LEAD}: {passage.lead_s:.3f}\r\n".encode()
        if self._client.trace is not None:
            told += self._client.trace.sent(self._choice)
        return told

    def on_head(self, status: int, fields: bytes, until_eof: bool, body: bytes) -> None:
        context, choice = self._context, self._choice
        if status in MOVE_ON and (following := self._next()) is not None:
            if self._connection is not None:
                self._connection.abort()
            self._move_on(following, f"answered {status}")
            return
        self._fields = fields
        self._body = b""
        if self._ticket is not None:
            context.scheduler.begin(self._ticket)
        if self._passage is not None:
            context.admission.begin(self._passage)
        if self._client.trace is not None:
            self._client.trace.began(status)
        decision = self._decision
        decision.status = status
        decision.first_byte_s = monotonic() - self._started
        stream = is_event_stream(fields)
        context.counters.began(decision.first_byte_s, choice.matched, self._placement.tokens, stream=stream)
        context.prefixes.served(choice, self._placement)
        connection = self._connection
        if connection is not None and not connection.complete:
            self._await(context.settings.deadlines.idle)
            connection.splice(self._client.write, context.splices, self._client.outlet)
        self._client.write_head(status, fields, choice, until_eof, body)

    def on_end(self) -> None:
        if self._paused and self._connection is not None:
            self._connection.resume()  # It serves the next request from the pool.
        self._connection = None
        self._close()
        self._context.counters.e2e.add(self._decision.total_s)
        self._client.end()

    def on_failure(self, failure: NodeFailure) -> None:
        if self._done:
            return
        context, choice = self._context, self._choice
        if self._fields is not None:
            log.warning("request %s: node %s: %s", self._client.request_id, choice.node.name, failure)
            context.counters.broken += 1
            self._end_with_error(self._upstream(failure, 502))
            return
        if failure.stale:
            self._settle()
            self._begin(choice)
            return
        if isinstance(failure, OutOfFiles):
            log.error("request %s: %s", self._client.request_id, failure)
            context.counters.starved += 1
            self.refuse(Overloaded(str(failure), retry_after=1.0, status=503))
            return
        context.registry.mark_failed(choice.node, str(failure))
        if failure.refused:
            context.scheduler.forget(choice.node)
        if (following := self._next()) is not None:
            self._move_on(following, str(failure))
        else:
            status = 504 if failure.timeout else 502
            self.refuse(self._upstream(failure, status))

    # Tries.

    def _next(self) -> int | None:
        """Rank of the node to try next. One that was removed meanwhile is not asked: its number may be another's."""
        nodes = self._context.registry.nodes
        ranks = range(self._try + 1, min(self._placement.ranked, self._context.settings.max_tries))
        return next((rank for rank in ranks if self._placement.choice(rank).node in nodes), None)

    def _move_on(self, rank: int, reason: str) -> None:
        self._context.counters.retries += 1
        if self._client.trace is not None:
            self._client.trace.failed(reason)
        self._decision.failures += ((self._choice.node, reason),)
        log.warning("request %s: node %s: %s; trying the next", self._client.request_id, self._choice.node.name, reason)
        self._settle()
        self._try = rank
        self._begin(self._placement.choice(rank))

    def _begin(self, choice: Choice) -> None:
        """Tries a node, as soon as it has room."""
        self._choice = choice
        self._decision.node, self._decision.matched = choice.node, choice.matched
        self._connection = None
        if self._passage is None and not choice.load.full:
            self.release()
            return
        self.deadline = monotonic() + self._context.settings.deadlines.queue
        try:
            self._context.admission.enter(self._admitted(), choice, len(self._body))
        except Overloaded as error:
            self.refuse(error)

    def _admitted(self) -> Passage:
        passage = self._passage
        if passage is None:
            passage = self._passage = self._context.admission.anybody(self._priority, self._client.request_id)
        passage.waiter = self
        return passage

    # What the admission says.

    def release(self) -> None:
        """Sends the request over a connection that is idle, or a new one."""
        client, context, choice = self._client, self._context, self._choice
        if self._passage is not None:
            self._decision.queued_s = monotonic() - self._started
            if client.trace is not None:
                client.trace.queued()
        self._ticket = context.scheduler.start(choice, self._placement, client.request_id)
        pool = context.pools.of(choice.node)
        connection = None if client.unframed else pool.take()
        if connection is not None:
            self.on_connected(connection)
        else:
            self._await(context.settings.deadlines.connect + _GRACE_S)
            pool.connect(self, UnframedConnection if client.unframed else Connection)

    def reroute(self) -> None:
        """The node that the request waits for is not to be had any more."""
        if (following := self._next()) is not None:
            self._move_on(following, "is not ready any more")
        else:
            reason = f"node {self._choice.node.name} is not ready any more, and no other is left to try"
            self.refuse(Overloaded(reason, retry_after=1.0, status=503))

    def refuse(self, error: RequestError) -> None:
        """Answers with an error; nothing has come back yet."""
        self._decision.refused(error)
        self._close()
        self._client.refuse(error)

    def _await(self, seconds: float) -> None:
        """For the node: it is given up after so long, and as soon as it is seen to be down."""
        now = monotonic()
        self._limit = now + seconds
        self.deadline = now + (LOOK_S if seconds > LOOK_S else seconds)

    # Ends.

    def _upstream(self, failure: NodeFailure, status: int) -> RequestError:
        return RequestError(f"node {self._choice.node.name}: {failure}", status=status, kind="upstream_error")

    def _end_with_error(self, error: RequestError) -> None:
        """The response began: an event stream ends with an error event if its framing allows, else it breaks off."""
        tail = None
        if self._connection is not None and self._fields is not None and is_event_stream(self._fields):
            tail = self._connection.framed_end(b"data: " + msgspec.json.encode(error.body()) + b"\n\n")
        self._decision.error = error.message
        self._close()
        if tail is None:
            self._client.break_off(Outcome.BROKEN)
        else:
            self._client.write(tail)
            self._client.end(broken=True)

    def _give_up_client(self) -> None:
        self._decision.error = "the client did not read its response"
        self._close()
        self._client.break_off(Outcome.LEFT)

    def _settle(self) -> None:
        """What this try added to the node's account is taken back."""
        if self._ticket is not None:
            self._context.scheduler.finish(self._ticket)
            self._ticket = None
        if self._passage is not None:
            self._context.admission.leave(self._passage)
        elif self._choice.load.held_s and self._choice.load.lane is not None:
            self._context.admission.pump(self._choice.load.lane)

    def _close(self) -> None:
        self._done = True
        self._decision.total_s = monotonic() - self._started
        self._settle()
        self._context.ticker.forget(self)
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
