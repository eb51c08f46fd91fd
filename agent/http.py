"""What every request of the agent's HTTP API goes through: request id, cluster secret, body limit, error shape."""

import asyncio
import hmac
import logging
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.agent.openai.answers import encode
from trunkline.agent.transfer.settings import is_loopback
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import (
    HEADER_CLUSTER,
    HEADER_LEAD,
    HEADER_PULL_FROM,
    HEADER_REQUEST_ID,
    HEADER_SALT,
    MAX_BODY_BYTES,
)
from trunkline.shared.pull import PullFrom, parse

BODY_TIMEOUT_S = 30.0
DISCARD_S = 2.0
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LEAD = re.compile(r"\d{1,6}(\.\d{1,3})?", re.ASCII)
_SALT = re.compile(r"[0-9a-f]{0,64}")
_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/models"})
"""Paths that are counted by name; the rest is one label, so that a scanner cannot grow the metrics."""

log = logging.getLogger(__name__)


class RequestEdge:
    """ASGI middleware, outermost: gives every request an id, echoes it, and counts answers by path and status.

    What nobody expected is logged with its traceback and answered with a plain 500.
    """

    def __init__(self, app: ASGIApp, answers: Counter[tuple[str, int]]) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER_REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[HEADER_REQUEST_ID] = request_id
                path = scope["path"] if scope["path"] in _ROUTES else "other"
                self._answers[path, message["status"]] += 1
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception:
            log.exception("%s: internal error", request_id)
            if started:
                raise
            error = RequestError("internal error", status=500, kind="internal_error")
            await error_response(error)(scope, receive, tagged)


class Caller(NamedTuple):
    """What is believed of who calls."""

    salt: str = ""
    """The tenant's (hex)."""
    pull_from: PullFrom | None = None
    """Another node that holds more of the prompt's beginning."""
    lead_s: float = 0.0
    """The tenant is behind its share by so much: its request is due earlier."""


class ClusterSecret:
    """Who may call `/v1/*` and learn where the events are, and whose word on the tenant's salt counts."""

    def __init__(self, secret: str | None) -> None:
        """`secret`: None if the node belongs to no cluster; then everybody may call, but nobody who counts on one."""
        self._secret = secret.encode() if secret is not None else None

    def caller(self, request: Request) -> Caller:
        """Raises RequestError 401 for one that does not know the secret, 400 for what no router says."""
        given = request.headers.get(HEADER_CLUSTER)
        pull = _pull_from(request)
        if self._secret is None:
            if given is not None:  # A router that believes its tenants apart would not be told that they are not.
                raise RequestError(f"this node has no cluster secret to compare {HEADER_CLUSTER} with", status=401)
            # Anybody could send this node to any address; where there is no secret, all of it is on one machine.
            return Caller("", pull if pull is not None and is_loopback(pull.address.rpartition(":")[0]) else None)
        if not hmac.compare_digest((given or "").encode("latin-1"), self._secret):
            reason = f"this node serves its cluster only: {HEADER_CLUSTER} is missing or wrong"
            raise RequestError(reason, status=401)
        salt = request.headers.get(HEADER_SALT, "")
        if not _SALT.fullmatch(salt):
            raise RequestError(f"{HEADER_SALT}: not a hex string of at most 64 digits", param=HEADER_SALT)
        return Caller(salt, pull, _lead_s(request))

    def member(self, request: Request) -> Caller:
        """As `caller`, for what is not for everybody: also raises RequestError 403 for one on another host where there
        is no secret."""
        caller = self.caller(request)
        if self._secret is None and not _is_same_host(request):
            reason = "this is for clients on this host, as long as there is no cluster secret: --cluster-secret-file"
            raise RequestError(reason, status=403)
        return caller


def _is_same_host(request: Request) -> bool:
    """By its loopback address, or by the one that this listens at: nobody else sends from there."""
    client, server = request.client, request.scope["server"]
    return client is not None and (is_loopback(client.host) or client.host == server[0])


def _pull_from(request: Request) -> PullFrom | None:
    value = request.headers.get(HEADER_PULL_FROM)
    if value is None:
        return None
    pull = parse(value)
    if pull is None:
        raise RequestError(f"{HEADER_PULL_FROM}: not of the form host:port; tokens=N", param=HEADER_PULL_FROM)
    return pull


def _lead_s(request: Request) -> float:
    lead = request.headers.get(HEADER_LEAD, "0")
    if not _LEAD.fullmatch(lead):
        raise RequestError(f"{HEADER_LEAD}: not a number of seconds below a million", param=HEADER_LEAD)
    return float(lead)


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises RequestError 413 when it is over `limit` bytes, 408 when it comes too slowly.

    No more than `limit` bytes are kept. The rest of a body that is too large is thrown away for DISCARD_S at most: a
    connection closed with unread data is reset, and many clients would never see the answer.
    """
    parts: list[bytes] = []
    total = 0
    declared = request.headers.get("content-length", "")
    too_large = declared.isdigit() and int(declared) > limit
    if too_large and "expect" in request.headers:
        raise _too_large(limit)  # the client asks first, and has sent nothing
    try:
        async with asyncio.timeout(DISCARD_S if too_large else BODY_TIMEOUT_S) as deadline:
            async for part in request.stream():
                total += len(part)
                if total <= limit:
                    parts.append(part)
                elif not too_large:
                    too_large = True
                    deadline.reschedule(asyncio.get_running_loop().time() + DISCARD_S)
    except TimeoutError:
        if not too_large:
            raise RequestError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s", status=408) from None
    except ClientDisconnect:
        raise RequestError("the client went away", status=499) from None
    if too_large:
        raise _too_large(limit)
    return b"".join(parts)


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """OpenAI's error object. After 408 and 413 the rest of the body is not read: the connection ends."""
    headers = dict(headers or ())
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.status in (408, 413):
        headers["connection"] = "close"
    return Response(encode(error.body()), error.status, headers, "application/json")


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is over the limit of {limit} bytes", status=413)
