"""The body of a request to /admin: after who asks was looked at, within a limit and a deadline."""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from trunkline.router.settings import Settings
from trunkline.shared.errors import RequestError


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body. Raises RequestError: 408 for one that comes too slowly, 413 for one that is too large."""
    body = bytearray()
    try:
        async with asyncio.timeout(settings.deadlines.body):
            async for part in request.stream():
                body += part
                if len(body) > settings.max_body_bytes:
                    raise RequestError(f"the body is over the limit of {settings.max_body_bytes} bytes", status=413)
    except TimeoutError:
        reason = f"the body did not arrive within {settings.deadlines.body:g} s"
        raise RequestError(reason, status=408) from None
    except ClientDisconnect:
        raise RequestError("the client went away", status=499) from None
    return bytes(body)
