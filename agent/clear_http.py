"""The endpoint that empties a node's cache, for who knows the cluster secret."""

from fastapi import FastAPI, Request
from starlette.responses import Response

from trunkline.agent.http import ClusterSecret
from trunkline.agent.node import Node
from trunkline.shared.pins import CACHE_PATH


def add_clear(app: FastAPI, node: Node, secret: ClusterSecret) -> None:
    @app.delete(CACHE_PATH)
    async def clear(request: Request) -> Response:
        """Nothing is found in any tier any more. Requests under way go on with the pages that they have."""
        secret.member(request)
        await node.ready().engine.on_cache(lambda cache: cache.clear())
        return Response(status_code=204)
