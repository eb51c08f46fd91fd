"""Why a client's connection cannot be read on, and errors as whole responses."""

import logging
from http import HTTPStatus

import httptools
import msgspec

from trunkline.shared.errors import Overloaded, RequestError

log = logging.getLogger("trunkline.router.protocol")


def reason(error: BaseException | None) -> RequestError:
    """`error`: what the parser raised, or a callback of it, or what read a request without it."""
    if isinstance(error, httptools.HttpParserCallbackError):
        return reason(error.__context__)
    if isinstance(error, httptools.HttpParserUpgrade):
        return no_upgrade()
    if isinstance(error, httptools.HttpParserError):
        return RequestError(f"not a valid HTTP/1.1 request: {error}")
    if isinstance(error, RequestError):
        return error
    log.error("a request failed in the router itself", exc_info=error)
    return RequestError("the router failed on this request", status=500, kind="internal_error")


def no_upgrade() -> RequestError:
    return RequestError("this server upgrades to no other protocol")


def large_head(limit: int) -> RequestError:
    return RequestError(f"headers are over the limit of {limit} bytes", status=431)


def response(error: RequestError, *, request_id: str = "", keep_alive: bool = False) -> bytes:
    """A whole response. Without `keep_alive` it says that the connection ends."""
    body = msgspec.json.encode(error.body())
    named = f"x-request-id: {request_id}\r\n" if request_id else ""
    retry = f"retry-after: {error.retry_after:.0f}\r\n" if isinstance(error, Overloaded) else ""
    close = "" if keep_alive else "connection: close\r\n"
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{named}{retry}{close}\r\n"
    )
    return head.encode() + body
