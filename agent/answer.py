"""Sends the reply of running generations, streamed or whole, and cancels them when the client leaves."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trunkline.agent.engine.base import Delta, GenerationStream
from trunkline.agent.openai.answers import DONE, event
from trunkline.agent.openai.reply import Reply
from trunkline.agent.streams import merged
from trunkline.agent.trace import RequestTrace
from trunkline.shared.errors import RequestError

log = logging.getLogger(__name__)


class Answer(Response):
    """An ASGI response over `streams`, which it owns.

    The head is sent with the first delta, so that what fails before has its own status. After that an error is an
    explicit event, without `[DONE]` behind it.
    """

    def __init__(
        self,
        reply: Reply,
        streams: Sequence[GenerationStream],
        *,
        stream: bool,
        include_usage: bool,
        then: Callable[[], Awaitable[None]] | None = None,
        trace: RequestTrace | None = None,
    ) -> None:
        """`then` is called when the whole reply has been sent."""
        self._trace = trace
        self._reply = reply
        self._then = then
        self._streams = streams
        self._stream = stream
        self._include_usage = include_usage
        self._started_at = time.monotonic()
        self._first_at: float | None = None
        self.background: BackgroundTask | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._send_events(send) if self._stream else self._send_whole(send))
        watch = asyncio.create_task(_disconnected(receive))
        outcome, sent = "disconnected", False
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                outcome = "failed"
                work.result()
                outcome, sent = self._reply.finish, True
        finally:
            for stream in self._streams:
                stream.cancel()
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            self._log(outcome)
            if self._trace is not None:
                self._trace.ended(outcome, failed=not sent)
        if sent and self._then is not None:
            await self._then()

    async def _send_whole(self, send: Send) -> None:
        async for index, delta in self._deltas():
            self._reply.add(index, delta)
        body = self._reply.whole()
        await send(_head(b"application/json", len(body)))
        await send({"type": "http.response.body", "body": body})

    async def _send_events(self, send: Send) -> None:
        started = False
        try:
            async for index, delta in self._deltas():
                if not started:
                    await send(_head(b"text/event-stream; charset=utf-8"))
                    started = True
                events = self._reply.events(index, delta)
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            end = (self._reply.usage_event() if self._include_usage else b"") + DONE
        except RequestError as error:
            if not started:
                raise
            end = event(error.body())
        await send({"type": "http.response.body", "body": end})

    async def _deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        async for index, delta in merged(self._streams):
            if self._first_at is None:
                self._first_at = time.monotonic()
            if self._trace is not None and delta.report is not None:
                self._trace.finished(delta.report)
            yield index, delta

    def _log(self, outcome: str) -> None:
        usage = self._reply.usage()
        fields = {
            "id": self._reply.request_id,
            "outcome": outcome,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "ttft_s": self._first_at - self._started_at if self._first_at is not None else None,
            "e2e_s": time.monotonic() - self._started_at,
        }
        log.info("request", extra={"fields": fields})


def _head(content_type: bytes, length: int | None = None) -> dict[str, object]:
    headers = [(b"content-type", content_type)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    else:
        headers.append((b"cache-control", b"no-cache"))
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
