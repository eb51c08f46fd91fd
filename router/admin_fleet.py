"""What operators tell the fleet through a router's /admin. It takes an admin token, also of clients on its host."""

from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, Request, Response

from trunkline.router.admin_body import read_body
from trunkline.router.body import Prompt, read_chat, read_completion
from trunkline.router.context import Context
from trunkline.router.guard import Guard
from trunkline.router.nodes import MAX_NODES
from trunkline.shared.body import decode
from trunkline.shared.errors import RequestError
from trunkline.shared.names import DRAIN_ADMIN_PATH, REPLICATE_PATH

_NOTHING = msgspec.Raw(b"")
_PREFIX = ("prompt", "messages", "tools", "chat_template_kwargs")
MAX_TIMEOUT_S = 60.0


class ReplicateBody(msgspec.Struct, forbid_unknown_fields=True):
    """A prefix, as in a request for it, and to how many nodes more it is to be brought."""

    to: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)] = 1
    model: str | None = None
    """None: the only one that is served."""
    tenant: str | None = None
    """Whose pages; needed where tenants are configured."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_S)] = 30.0
    """Seconds."""
    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}\\Z")] | None = None
    """Instead of the prefix: the page key or text key that it ends with, in hex."""
    prompt: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    chat_template_kwargs: msgspec.Raw = _NOTHING


_decoder = msgspec.json.Decoder(ReplicateBody)


def add_fleet(app: FastAPI, context: Context, guard: Guard) -> None:
    @app.post(REPLICATE_PATH, dependencies=[Depends(guard.acting)])
    async def replicate(request: Request) -> Response:
        body = decode(_decoder, await read_body(request, context.settings))
        model = body.model if body.model is not None else _only(context)
        fields = {name: raw for name in _PREFIX if (raw := getattr(body, name)) is not _NOTHING}
        if body.key is not None:
            if fields or body.tenant is not None:
                raise RequestError("key: it stands in place of a prefix and of its tenant", param="key")
            return _json(await context.replication.replicate_known(int(body.key, 16), model, body.to, body.timeout))
        tenant = context.tenants.named(body.tenant)
        prompt = _prompt(model, fields)
        told = msgspec.json.encode({**fields, "timeout": body.timeout})
        done = await context.replication.replicate(prompt, told, tenant, body.to, body.timeout)
        return _json(done)

    drain = context.drain

    @app.post(DRAIN_ADMIN_PATH + "/{name:path}", dependencies=[Depends(guard.acting)])
    async def start(name: str) -> Response:
        """The node gets no new requests from any router, and hands on what it holds."""
        return _json(await drain.start(name))

    @app.get(DRAIN_ADMIN_PATH + "/{name:path}", dependencies=[Depends(guard.privileged)])
    async def status(name: str) -> Response:
        return _json(await drain.status(name))

    @app.delete(DRAIN_ADMIN_PATH + "/{name:path}", dependencies=[Depends(guard.acting)])
    async def resume(name: str) -> Response:
        return _json(await drain.resume(name))


def _json(message: object) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")


def _only(context: Context) -> str:
    models = sorted(context.registry.models())
    if len(models) != 1:
        served = f"name one of {', '.join(models)}" if models else "none is served now"
        raise RequestError(f"model: {served}", param="model")
    return models[0]


def _prompt(model: str, fields: dict[str, msgspec.Raw]) -> Prompt:
    if ("prompt" in fields) == ("messages" in fields):
        raise RequestError("either prompt or messages says which prefix is meant", param="prompt")
    request = msgspec.json.encode({"model": model, **fields})
    return read_chat(request) if "messages" in fields else read_completion(request)
