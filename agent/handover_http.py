"""Endpoints to drain this node, and to take prefixes that it holds elsewhere. For members of its cluster."""

import re

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from trunkline.agent.handover import told
from trunkline.agent.http import ClusterSecret, read_body
from trunkline.agent.node import Node
from trunkline.agent.openai.answers import encode
from trunkline.shared.body import decode
from trunkline.shared.errors import RequestError
from trunkline.shared.handover import DRAIN_PATH, HANDOVER_PATH, PREFIXES_PATH, Ask

KEY = re.compile("[0-9a-f]{16}")
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

    @app.get(PREFIXES_PATH + "/{key}")
    async def prefix(request: Request, key: str) -> Response:
        """What ends with a page key or text key, in hex, for others to pull."""
        secret.member(request)
        serving = node.ready()
        if not KEY.fullmatch(key):
            raise RequestError(f"{key[:40]!r} is no key: 16 hex digits are one", status=404)
        found = await serving.engine.on_cache(lambda cache: cache.warm.find(int(key, 16)))
        if found is None:
            raise RequestError(f"no prefix here ends with key {key}", status=404)
        return _json(told(found))


def _json(message: object) -> Response:
    return Response(encode(message), media_type="application/json")
