"""Endpoints to pin prefixes, for who knows the cluster secret."""

import re

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from trunkline.agent.http import ClusterSecret, read_body
from trunkline.agent.node import Node
from trunkline.agent.openai.answers import encode
from trunkline.agent.pins import Pins
from trunkline.agent.prefix_body import PrefixBody
from trunkline.shared.body import decode
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.pins import MAX_TTL_S, PINS_PATH, PinList

_KEY = re.compile("[0-9a-f]{16}")


class PinBody(PrefixBody, kw_only=True, forbid_unknown_fields=True):
    """What to pin. A misspelt `ttl` would be for ever."""

    key: str | None = None
    """Instead: of a prefix that is here, the page key or text key at its end, in hex."""
    ttl: float | None = None
    """Seconds; null: for ever."""

    def known(self) -> int | None:
        """The key, if that is given. Raises RequestError for one that is none, and for one beside a prompt."""
        if self.key is None:
            return None
        if self.prompt is not None or self.messages is not None:
            raise RequestError("key: it stands in place of prompt and messages", param="key")
        if not _KEY.fullmatch(self.key):
            raise RequestError(f"key: {self.key[:40]!r} is not of 16 hex digits", param="key")
        return int(self.key, 16)


_decoder = msgspec.json.Decoder(PinBody)


def add_pins(app: FastAPI, node: Node, secret: ClusterSecret) -> None:
    @app.get(PINS_PATH)
    async def pins(request: Request) -> Response:
        secret.member(request)
        return _json(PinList(_pins(node).statuses()))

    @app.post(PINS_PATH)
    async def pin(request: Request) -> Response:
        caller, serving = secret.member(request), node.ready()
        body = decode(_decoder, await read_body(request))
        if body.ttl is not None and not 0 < body.ttl <= MAX_TTL_S:
            raise RequestError(f"ttl: {body.ttl:g} is not above 0 and at most {MAX_TTL_S:g} seconds", param="ttl")
        known = body.known()
        if known is not None:
            return _json(await _pins(node).pin_known(known, body.ttl))
        (prompt,) = await serving.preparer.prompts(body.request(), caller.salt)
        return _json(await _pins(node).pin(prompt.tokens, caller.salt, body.ttl))

    @app.delete(PINS_PATH + "/{name}")
    async def unpin(request: Request, name: str) -> Response:
        secret.member(request)
        await _pins(node).unpin(name)
        return Response(status_code=204)


def _pins(node: Node) -> Pins:
    node.ready()
    if node.pins is None:
        raise Overloaded("this node has no pins yet", retry_after=5.0, status=503)
    return node.pins


def _json(message: object) -> Response:
    return Response(encode(message), media_type="application/json")
