"""A backend that costs next to nothing: a fixed reply, or a stream of chunks at a pace. `python -m ... PORT`.

`max_tokens` chunks with `seed` microseconds between them if the body says `"stream":true`, else one JSON document.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

MODEL = "mock-model"
_REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock-model","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"A fixed reply."},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,'
    b'"completion_tokens":12,"total_tokens":112}}'
)
_MODELS = b'{"object":"list","data":[{"id":"mock-model","object":"model"}]}'
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock-model",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NUMBER = {name: re.compile(rb'"%s": ?(\d+)' % name.encode()) for name in ("max_tokens", "seed")}


def _document(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Backend(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's.

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._buffer[:head_end])
        length = _LENGTH.search(head)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) >= end:
            tail = bytes(self._buffer[max(head_end + 4, end - 200) : end])
            del self._buffer[:end]
            self._answer(head, tail)

    def _answer(self, head: bytes, tail: bytes) -> None:
        if head.startswith(b"GET"):
            status = b"404 Not Found" if b"/trunkline/" in head[:64] else b"200 OK"
            self._write(_document(_MODELS).replace(b"200 OK", status, 1))
        elif re.search(rb'"stream": ?true', tail):
            numbers = {name: int(found[1]) if (found := key.search(tail)) else 0 for name, key in _NUMBER.items()}
            self._write(_STREAM_HEAD)
            self._stream(numbers["max_tokens"] or 64, numbers["seed"] / 1e6)
        else:
            self._write(_document(_REPLY))

    def _stream(self, left: int, pause_s: float) -> None:
        if not left:
            self._write(_chunk(_DONE) + b"0\r\n\r\n")
            return
        self._write(_chunk(_EVENT))
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._stream, left - 1, pause_s)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int) -> None:
    """Until it is killed."""
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
