"""The endpoint through which routers order pages here, for who knows the cluster secret."""

from typing import Annotated

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from trunkline.agent.http import ClusterSecret, read_body
from trunkline.agent.node import Node
from trunkline.agent.openai.answers import encode
from trunkline.agent.prefix_body import PrefixBody
from trunkline.agent.prepare import Prompt
from trunkline.shared.body import decode
from trunkline.shared.errors import RequestError
from trunkline.shared.names import HEADER_PULL_FROM, PULLS_PATH
from trunkline.shared.wire import DEPTH_BYTES, KEY_BYTES, Depths, Keys

MAX_TIMEOUT_S = 60.0


class OrderBody(PrefixBody, kw_only=True):
    """What to pull; from whom is said in HEADER_PULL_FROM, as for a request."""

    text_keys: Keys = b""
    """Of a prompt that is given by its tokens: packed u64, in base64, parents first."""
    text_depths: Depths = b""
    """How many tokens each settles: packed u32, in base64."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_S)] = 30.0
    """Seconds."""


_decoder = msgspec.json.Decoder(OrderBody)


def add_orders(app: FastAPI, node: Node, secret: ClusterSecret) -> None:
    @app.post(PULLS_PATH)
    async def pull(request: Request) -> Response:
        caller, serving = secret.member(request), node.ready()
        body = decode(_decoder, await read_body(request))
        if caller.pull_from is None:
            reason = f"{HEADER_PULL_FROM} says where to pull from; without a cluster secret, a node of this machine"
            raise RequestError(reason, param=HEADER_PULL_FROM)
        (prompt,) = await serving.preparer.prompts(body.request(), caller.salt)
        if body.text_keys:
            prompt = _with_texts(prompt, body)
        brought = await serving.orders.bring(prompt, caller.salt, caller.pull_from, body.timeout)
        return Response(encode(brought), media_type="application/json")


def _with_texts(prompt: Prompt, body: OrderBody) -> Prompt:
    if prompt.text_keys:
        raise RequestError("text_keys are for a prompt of token ids: a text has its own", param="text_keys")
    count, rest = divmod(len(body.text_keys), KEY_BYTES)
    if rest or len(body.text_depths) != count * DEPTH_BYTES:
        raise RequestError(
            f"text_keys: {len(body.text_keys)} bytes of keys with {len(body.text_depths)} bytes of depths",
            param="text_keys",
        )
    return prompt._replace(text_keys=body.text_keys, text_depths=body.text_depths)
