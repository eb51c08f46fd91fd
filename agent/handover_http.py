"""Endpoints to drain this node, and to take its warm prefixes elsewhere. For members of its cluster."""

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from trunkline.agent.http import ClusterSecret, read_body
from trunkline.agent.node import Node
from trunkline.agent.openai.answers import encode
from trunkline.shared.body import decode
from trunkline.shared.errors import RequestError
from trunkline.shared.handover import DRAIN_PATH, HANDOVER_PATH, Ask

_decoder = msgspec.json.Decoder(Ask)


def add_handover(app: FastAPI, node: Node, secret: ClusterSecret) -> None:
    @app.post(DRAIN_PATH)
    async def drain(request: Request) -> Response:
        """No new requests from now on; those that run go on. The process stays."""
        secret.member(request)
        if node.handover is None:
            node.ready()
        node.drain()
        return _json(node.drain_status())

    @app.get(DRAIN_PATH)
    async def status(request: Request) -> Response:
        secret.member(request)
        return _json(node.drain_status())

    @app.delete(DRAIN_PATH)
    async def resume(request: Request) -> Response:
        secret.member(request)
        node.resume()
        return _json(node.drain_status())

    @app.post(HANDOVER_PATH)
    async def handover(request: Request) -> Response:
        secret.member(request)
        ask = decode(_decoder, await read_body(request))
        if node.handover is None:
            raise RequestError("this node does not drain: it hands nothing on", status=409)
        return _json(await node.handover.take(max(0, ask.most), ask.done))


def _json(message: object) -> Response:
    return Response(encode(message), media_type="application/json")
