"""A closed loop of connections that each send the next request as soon as the last is answered."""

import asyncio
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import uvloop

from trunkline.loadtest.bench.backend import MODEL
from trunkline.shared.errors import ConfigError

SHARED = 0.8
"""Share of the prompts that begin with one system prompt."""
BODIES = 256
_MARK = b"@000000000000"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Load:
    """What was answered."""

    requests: int = 0
    chunks: int = 0
    failures: int = 0
    last_failure: str = "no answer"


class Bodies:
    """Chat bodies of a size in bytes, no two alike: most of one is the shared system prompt, or a prompt of its own."""

    def __init__(self, size: int, shared_size: int, *, stream_us: int | None = None, shared: float = SHARED) -> None:
        chance = random.Random(7)
        system = _text(chance, shared_size)
        options = {} if stream_us is None else {"seed": stream_us}
        self._bodies = []
        for _ in range(BODIES):
            first = f"{system} " if chance.random() < shared else f"{_MARK.decode()} {_text(chance, shared_size)}"
            messages = [
                {"role": "system", "content": first},
                {"role": "user", "content": f"{_MARK.decode()} {_text(chance, size - shared_size)}"},
            ]
            body = {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": stream_us is not None, **options}
            self._bodies.append(json.dumps(body, separators=(",", ":")).encode())

    def __iter__(self) -> Iterator[bytes]:
        for number in itertools.count(random.getrandbits(36)):
            yield self._bodies[number % BODIES].replace(_MARK, b"@%012x" % number)


def drive(host: str, port: int, bodies: Bodies, connections: int, *, seconds: float = 0.0, requests: int = 0) -> Load:
    """For so many seconds, or so many requests. Raises ConfigError if nothing answers."""
    load: Load = uvloop.run(_drive(host, port, bodies, connections, seconds, requests))
    return load


async def _drive(host: str, port: int, bodies: Bodies, connections: int, seconds: float, requests: int) -> Load:
    loop = asyncio.get_running_loop()
    load, source = Load(), iter(bodies)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n".encode()
    until = loop.time() + seconds if seconds else float("inf")

    def next_request() -> bytes | None:
        if loop.time() >= until or (requests and load.requests + load.failures >= requests):
            return None
        body = next(source)
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)

    clients = [_Client(load, next_request) for _ in range(connections)]
    try:
        for client in clients:
            await loop.create_connection(lambda client=client: client, host, port)  # type: ignore[misc]
        async with asyncio.timeout(seconds + 600.0):
            await asyncio.gather(*(client.done for client in clients))
    except OSError as error:
        raise ConfigError(f"nothing answers on {host}:{port}: {error}") from None
    if not load.requests:
        raise ConfigError(f"{host}:{port} completed no request, {load.failures} failed: {load.last_failure}")
    return load


class _Client(asyncio.Protocol):
    def __init__(self, load: Load, next_request: Callable[[], bytes | None]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load = load
        self._next = next_request
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's.
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        ended = self._ended()
        if ended:
            if self._received.startswith(b"HTTP/1.1 200"):
                self._load.requests += 1
                self._load.chunks += self._received.count(b"data: {")
            else:
                self._load.failures += 1
                self._load.last_failure = self._received[:300].decode(errors="replace")
            self._received.clear()
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._load.failures += 1
            self.done.set_result(None)

    def _ended(self) -> bool:
        if self._received.endswith(b"\r\n0\r\n\r\n"):
            return True
        head_end = self._received.find(b"\r\n\r\n")
        length = _LENGTH.search(self._received, 0, head_end + 2) if head_end >= 0 else None
        return length is not None and len(self._received) >= head_end + 4 + int(length[1])

    def _send(self) -> None:
        request = self._next()
        if request is None or self._transport is None:
            if not self.done.done():
                self.done.set_result(None)
            if self._transport is not None:
                self._transport.close()
        else:
            self._transport.write(request)


def _text(chance: random.Random, size: int) -> str:
    words: list[str] = []
    while size > 0:
        words.append("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))))
        size -= len(words[-1]) + 1
    return " ".join(words)
