"""Orders of operators about one node's cache. They want an admin token, also of clients on the router's host."""

from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, Request, Response

from trunkline.router.admin_body import read_body
from trunkline.router.context import Context
from trunkline.router.guard import Guard
from trunkline.router.upkeep import Upkeep
from trunkline.shared.body import decode

MAX_TTL_S = 30 * 86400.0


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """What to pin, and for how many seconds."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_S)]


_decoder = msgspec.json.Decoder(PinBody)


def add_upkeep(app: FastAPI, context: Context, guard: Guard) -> None:
    upkeep = Upkeep(context.registry, context.tenants.cluster_header)

    @app.post("/admin/pins/{node:path}", dependencies=[Depends(guard.acting)])
    async def pin(node: str, request: Request) -> Response:
        """Keeps the prefix that ends with the key there for `ttl` seconds."""
        body = decode(_decoder, await read_body(request, context.settings))
        return _json(await upkeep.pin(node, body.key, body.ttl))

    @app.get("/admin/pins/{node:path}", dependencies=[Depends(guard.privileged)])
    async def pins(node: str) -> Response:
        """What is pinned there."""
        return _json(await upkeep.pins(node))

    @app.delete("/admin/pins/{node:path}/{pin}", dependencies=[Depends(guard.acting)])
    async def unpin(node: str, pin: str) -> Response:
        await upkeep.unpin(node, pin)
        return Response(status_code=204)

    @app.delete("/admin/cache/{node:path}", dependencies=[Depends(guard.acting)])
    async def clear(node: str) -> Response:
        """Empties every tier there."""
        await upkeep.clear(node)
        return Response(status_code=204)


def _json(message: object) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")
