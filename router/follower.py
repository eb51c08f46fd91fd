"""Keeps one node's summary in step with its agent: two sockets, one task, a deadline on every answer.

Events come on a SUB socket; what was missed is asked for on a DEALER socket. `NodeSummary` decides what to do,
the follower carries it out, and watches for what only a clock can tell: silence, and answers that do not come.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import zmq
import zmq.asyncio

from trunkline.router.summaries import NodeSummary, SummaryStatus
from trunkline.router.timing import Timing, jittered
from trunkline.shared.errors import WireError
from trunkline.shared.wire import (
    MAX_FRAME_BYTES,
    EventBatch,
    Finished,
    Load,
    Message,
    Request,
    SnapshotRequest,
    decode_message,
    encode,
)

_FIRST_PAUSE_S = 0.05
_TICK_S = 0.25
_DRAIN = 64
"""Messages taken from one socket before the other has its turn."""
_RECEIVE_QUEUE = 1024
_SEND_QUEUE = 1
"""Questions kept for an agent that is not there: the rest are asked when their time comes again."""

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a node's events are, and who must be sending them."""

    node: str
    events: str
    replay: str


class Follower:
    """Run `run` as a task, cancel it to stop. Callbacks run on the event loop and must be quick.

    `on_load`: each new load report; `on_finished`: each finished request, once; `on_void`: a new epoch or a silence
    of `gone_s`, the summary was cleared.
    """

    def __init__(
        self,
        summary: NodeSummary,
        stream: Stream,
        context: zmq.asyncio.Context,
        *,
        on_load: Callable[[Load], None],
        on_finished: Callable[[Finished], None],
        on_void: Callable[[], None],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.summary = summary
        self.stream = stream
        self.heard_at = clock()
        """When the last event batch came, or following began."""
        self._context = context
        self._on_load, self._on_finished, self._on_void = on_load, on_finished, on_void
        self._timing = timing
        self._clock = clock
        self._newest_load = (-1, -1)
        self._deadline: float | None = None
        self._pause = _FIRST_PAUSE_S
        self._snapshot_pause = _FIRST_PAUSE_S
        self._snapshot_at = -timing.partial_retry_s
        self._logged = SummaryStatus.SYNCING

    @property
    def status(self) -> SummaryStatus:
        silent = self._clock() - self.heard_at > self._timing.stale_s
        return SummaryStatus.STALE if silent else self.summary.status

    async def run(self) -> None:
        """Follows for ever; opens the sockets anew, with back-off, when nothing is heard."""
        while True:
            try:
                with self._sockets() as (events, answers):
                    await self._follow(events, answers)
            except zmq.ZMQError as error:
                log.warning("node %s: event stream %s: %s", self.stream.node, self.stream.events, error)
            await self._tick()
            await asyncio.sleep(jittered(self._pause))
            self._pause = min(self._pause * 2, self._timing.reopen_s)

    async def _follow(self, events: "zmq.asyncio.Socket", answers: "zmq.asyncio.Socket") -> None:
        """Until nothing was heard for `reopen_s`."""
        opened = self._clock()
        poller = zmq.asyncio.Poller()
        poller.register(events, zmq.POLLIN)
        poller.register(answers, zmq.POLLIN)
        if self.summary.status is SummaryStatus.SYNCING:
            await self._ask(answers, self.summary.resync())
        while self._clock() - max(self.heard_at, opened) < self._timing.reopen_s:
            wait = _TICK_S if self._deadline is None else min(_TICK_S, max(0.0, self._deadline - self._clock()))
            for source, _ in await poller.poll(int(wait * 1000) + 1):
                await self._drain(source, answers)
            await self._tick()
            if self._deadline is not None and self._clock() >= self._deadline:
                await self._ask(answers, self.summary.retry())

    async def _drain(self, source: "zmq.asyncio.Socket", answers: "zmq.asyncio.Socket") -> None:
        for _ in range(_DRAIN):
            try:
                frame = await source.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(frame)
            except WireError as error:
                self._count_bad(error)
                continue
            request = await self._receive(message)
            if source is answers:
                self._deadline = self._clock() + self._timing.reply_s  # the answer is coming
            if request is not None:
                await self._ask(answers, request)
            elif not self.summary.waiting:
                self._deadline = None

    def _decode(self, frame: bytes) -> Message:
        message = decode_message(frame)
        if isinstance(message, EventBatch) and message.node != self.stream.node:
            raise WireError(f"events of node {message.node!r} on the stream of node {self.stream.node!r}")
        return message

    async def _receive(self, message: Message) -> Request | None:
        epoch = self.summary.epoch
        if self.summary.heavy(message):
            request = await in_thread(self.summary.receive, message)
        else:
            request = self.summary.receive(message)
        if self.summary.epoch != epoch and epoch is not None:
            log.warning("node %s: restarted, its summary starts anew", self.stream.node)
            self._on_void()
        if isinstance(message, EventBatch) and message.newest < 0 and message.epoch == self.summary.epoch:
            self.heard_at = self._clock()
            self._pause = _FIRST_PAUSE_S
            if message.seq > self._newest_load[1] or message.epoch != self._newest_load[0]:
                self._newest_load = message.epoch, message.seq
                self._on_load(message.load)
        for finished in self.summary.take_finished():
            self._on_finished(finished)
        return request

    async def _ask(self, answers: "zmq.asyncio.Socket", request: Request | None) -> None:
        """Sends it, unless it is a snapshot too soon after the last one: then `retry` asks when it is due."""
        now = self._clock()
        self._deadline = None if request is None else now + self._timing.reply_s
        if request is None:
            return
        if isinstance(request, SnapshotRequest):
            if now - self._snapshot_at > self._timing.snapshot_backoff_s * 2:
                self._snapshot_pause = _FIRST_PAUSE_S
            if now - self._snapshot_at < self._snapshot_pause:
                self._deadline = self._snapshot_at + self._snapshot_pause
                return
        try:
            await answers.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:  # the one before has not left yet
            self._deadline = now + _FIRST_PAUSE_S
            return
        if isinstance(request, SnapshotRequest):
            self._snapshot_at = now
            self._snapshot_pause = min(self._snapshot_pause * 2, self._timing.snapshot_backoff_s)

    async def _tick(self) -> None:
        """What time alone brings about."""
        now = self._clock()
        if now - self.heard_at > self._timing.gone_s and self.summary.epoch is not None:
            log.warning("node %s: silent for %.0f s, its summary is cleared", self.stream.node, now - self.heard_at)
            await in_thread(self.summary.clear)
            self._on_void()
        status = self.status
        if status is SummaryStatus.PARTIAL and now - self._snapshot_at > self._timing.partial_retry_s:
            self.summary.resync()
            self._deadline = now
        if status is not self._logged:
            level = logging.INFO if status is SummaryStatus.EXACT else logging.WARNING
            log.log(level, "node %s: summary is %s, was %s", self.stream.node, status, self._logged)
            self._logged = status

    def _count_bad(self, error: WireError) -> None:
        self.summary.counters.bad_frames += 1
        count = self.summary.counters.bad_frames
        if count & (count - 1) == 0:  # at 1, 2, 4, 8, ...: loud, and no flood
            log.warning("node %s: bad frame (%d so far): %s", self.stream.node, count, error)

    @contextmanager
    def _sockets(self) -> "Iterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]":
        events = self._context.socket(zmq.SUB)
        answers = self._context.socket(zmq.DEALER)
        try:
            for sock in events, answers:
                sock.setsockopt(zmq.LINGER, 0)
                sock.setsockopt(zmq.IPV6, 1)
                sock.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE)
                sock.setsockopt(zmq.SNDHWM, _SEND_QUEUE)
                sock.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
                sock.setsockopt(zmq.RECONNECT_IVL, 100)
                sock.setsockopt(zmq.RECONNECT_IVL_MAX, int(self._timing.reopen_s * 1000))
            events.subscribe(b"")
            events.connect(self.stream.events)
            answers.connect(self.stream.replay)
            yield events, answers
        finally:
            events.close()
            answers.close()


async def in_thread(call: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
    """Off the event loop. If cancelled, it ends only when the call has: the summary is never touched by two."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
