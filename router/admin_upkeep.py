"""Orders of operators about one node's cache. They want an admin token, also of clients on the router's host."""

from typing import Annotated

import msgspec
from fastapi import Body, Depends, FastAPI, Response

from trunkline.router.context import Context
from trunkline.router.guard import Guard
from trunkline.router.upkeep import Upkeep

MAX_TTL_S = 30 * 86400.0


def add_upkeep(app: FastAPI, context: Context, guard: Guard) -> None:
    upkeep = Upkeep(context.registry, context.tenants.cluster_header)

    @app.post("/admin/pins/{node:path}", dependencies=[Depends(guard.acting)])
    async def pin(
        node: str,
        key: Annotated[str, Body(pattern="^[0-9a-f]{16}$")],
        ttl: Annotated[float, Body(gt=0, le=MAX_TTL_S)],
    ) -> Response:
        """Keeps the prefix that ends with the key there for `ttl` seconds."""
        return Response(msgspec.json.encode(await upkeep.pin(node, key, ttl)), media_type="application/json")

    @app.delete("/admin/cache/{node:path}", dependencies=[Depends(guard.acting)])
    async def clear(node: str) -> Response:
        """Empties every tier there."""
        await upkeep.clear(node)
        return Response(status_code=204)
