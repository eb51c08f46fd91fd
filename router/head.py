"""Heads of HTTP/1.1 messages: what of them travels on, and what was made of those that were seen before.

Clients and nodes send the same head again and again, but for the length of the body. So what the parser made of a head
is remembered under its bytes without that number, and the next one like it needs no parser. Nothing is taken this way
that the parser has not taken before.
"""

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")
Headers = list[tuple[bytes, bytes]]
"""Names in lower case, and values."""

_HOP_BY_HOP = rb"connection|keep-alive|proxy-connection|proxy-authenticate|proxy-authorization|te|upgrade"
_OURS = b"x-trunkline-"
_FRAMING = rb"host|content-length|transfer-encoding|trailer|expect"
_BY_HAND = rb"authorization|x-request-id"
_REQUEST_DROPPED = frozenset(b"|".join((_HOP_BY_HOP, _FRAMING, _BY_HAND)).split(b"|"))
"""A request's body arrives as a whole and leaves with a length, so its framing is the router's. What `_BY_HAND` names
is put back."""
_NOMINATE_NOTHING = frozenset((b"keep-alive", b"Keep-Alive", b"close"))
"""Values of the Connection header that nominate no other header to be dropped."""
_MAX_REQUEST_ID = 128

_RESPONSE_DROPPED = re.compile(rb"\r\n(?i:%b|x-request-id|%b[^:]*):[^\r]*" % (_HOP_BY_HOP, _OURS))
"""A response's framing passes through, for its body does."""
_TRANSFER_ENCODING = re.compile(rb"\r\n(?i:transfer-encoding):[^\r]*")
_CONTENT_LENGTH = re.compile(rb"\r\n(?i:content-length):[^\r]*")
_EVENT_STREAM = re.compile(rb"\r\n(?i:content-type:\s*text/event-stream)")

_MAX_DIGITS = 15
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,%d})\r\n" % _MAX_DIGITS)
_MAX_HEAD_BYTES = 4096
_MAX_HEADS = 1024
"""Together at most 4 MiB of keys, and as much of what was made of them."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the router needs of a request's head. `fields`: what travels on, lines with their CRLF."""

    target: bytes
    fields: bytes
    authorization: bytes | None
    request_id: str
    """Empty: none, or none that can be used."""
    expects: bool
    """The client waits for `100 Continue` before it sends the body."""
    keep_alive: bool
    unframed: bool
    """The client speaks HTTP/1.0 and knows no chunks."""


def request_head(
    target: bytes, headers: Headers, *, expects: bool = False, keep_alive: bool = True, unframed: bool = False
) -> RequestHead:
    """Of a request that a parser has taken."""
    authorization, request_id = None, ""
    nominated: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == b"connection" and value not in _NOMINATE_NOTHING:
            nominated += map(bytes.strip, value.lower().split(b","))
        elif name == b"x-request-id" and len(value) <= _MAX_REQUEST_ID and value.isascii():
            request_id = value.decode()
    fields = [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in _REQUEST_DROPPED and name not in nominated and not name.startswith(_OURS)
    ]
    return RequestHead(target, b"".join(fields), authorization, request_id, expects, keep_alive, unframed)


def response_fields(head: bytes, *, unframed: bool) -> bytes:
    """What travels on of a response's head, lines with their CRLF in front; `unframed`: without its chunks' framing."""
    fields = _RESPONSE_DROPPED.sub(b"", head[head.find(b"\r\n") :])
    return _TRANSFER_ENCODING.sub(b"", fields) if unframed else fields


def is_chunked(head: bytes) -> bool:
    return _TRANSFER_ENCODING.search(head) is not None


def has_length(head: bytes) -> bool:
    return _CONTENT_LENGTH.search(head) is not None


def without_length(fields: bytes) -> bytes:
    return _CONTENT_LENGTH.sub(b"", fields)


def is_event_stream(fields: bytes) -> bool:
    return _EVENT_STREAM.search(fields) is not None


def cut(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The head at the beginning of `data`, if it is there as a whole and its body has a length: what comes before the
    number behind content-length, the number, and what comes after it."""
    end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    found = _LENGTH.search(data, 0, end + 2) if end > 0 else None
    if found is None:
        return None
    start, stop = found.span(1)
    return data[:start], data[start:stop], data[stop : end + 4]


class Memory(Generic[_T]):
    """What was made of heads, on all connections. When it is full, it begins anew."""

    def __init__(self) -> None:
        self._known: dict[bytes, _T] = {}
        self.recall = self._known.get

    def learn(self, key: bytes, head: _T) -> None:
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        self._known[key] = head


class Heads(Generic[_T]):
    """Of one connection: the last head that was known, which mostly comes again, and else what the memory has."""

    __slots__ = ("_after", "_before", "_last", "_memory", "_unknown")

    def __init__(self, memory: Memory[_T]) -> None:
        self._memory = memory
        self._last: _T | None = None
        self._before = self._after = b""
        """Of the last one, around the number."""
        self._unknown: bytes | None = None

    def recall(self, data: bytes) -> tuple[_T, int, int] | None:
        """If `data` begins with a known head: what was made of it, the size of the body, and where the body begins."""
        before = self._before
        if self._last is not None and data.startswith(before):
            start = len(before)
            stop = data.find(b"\r", start, start + _MAX_DIGITS + 1)
            if stop > start and data.startswith(self._after, stop) and data[start:stop].isdigit():
                return self._last, int(data[start:stop]), stop + len(self._after)
        self._unknown = None
        parts = cut(data)
        if parts is None:
            return None
        before, number, after = parts
        known = self._memory.recall(before + after)
        if known is None:
            self._unknown = before + after
            return None
        self._last, self._before, self._after = known, before, after
        return known, int(number), len(before) + len(number) + len(after)

    def unknown(self) -> bytes | None:
        """What to remember the head under which `recall` did not know, once."""
        key, self._unknown = self._unknown, None
        return key
