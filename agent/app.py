"""The agent's HTTP API: OpenAI's endpoints, health, metrics, and who this node is.

A generation's life here: body read under a limit -> decoded and checked -> tokenized off the event loop -> submitted
-> answered, streamed or whole. Errors have OpenAI's shape: 400 malformed or senseless, 401 wrong cluster secret, 404
unknown model or path, 408 slow body, 413 body too large, 422 wrong type, 429 full (Retry-After), 503 loading, closing
or broken (Retry-After), 504 past the deadline.
"""

import asyncio
import contextlib
import logging
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from trunkline.agent.answer import Answer
from trunkline.agent.clear_http import add_clear
from trunkline.agent.engine.base import Engine, Generation, GenerationStream
from trunkline.agent.handover_http import add_handover
from trunkline.agent.http import Caller, ClusterSecret, RequestEdge, error_response, read_body
from trunkline.agent.metrics import AgentCollector
from trunkline.agent.node import Node, Serving, State
from trunkline.agent.openai import answers, params
from trunkline.agent.openai.body import ChatBody, CompletionBody, chat_body, completion_body
from trunkline.agent.openai.reply import ChatReply, CompletionReply, Reply
from trunkline.agent.orders_http import add_orders
from trunkline.agent.pins_http import add_pins
from trunkline.agent.prepare import Prompt
from trunkline.agent.trace import RequestTrace
from trunkline.shared.errors import ModelNotFound, RequestError, TrunklineError
from trunkline.shared.names import INFO_PATH

log = logging.getLogger(__name__)


def create_app(node: Node, on_started: Callable[[TrunklineError | None], None]) -> FastAPI:
    """The ASGI app of one node. The node loads after the app has started, and is not ready until then.

    `on_started` is called once: with None when the node is ready, or with why it cannot start.
    """
    counts: Counter[tuple[str, int]] = Counter()
    app = FastAPI(lifespan=lambda _: _lifespan(node, on_started), openapi_url=None, redirect_slashes=False)
    app.add_middleware(RequestEdge, answers=counts)
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(HTTPException, _http_error)
    secret = ClusterSecret(node.settings.secret)
    _add_generation(app, node, secret)
    _add_operation(app, node, secret, counts)
    add_pins(app, node, secret)
    add_orders(app, node, secret)
    add_clear(app, node, secret)
    add_handover(app, node, secret)
    return app


def _add_generation(app: FastAPI, node: Node, secret: ClusterSecret) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        caller, serving = secret.caller(request), node.ready()
        return await _generate(request, serving, completion_body(await read_body(request)), caller)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        caller, serving = secret.caller(request), node.ready()
        return await _generate(request, serving, chat_body(await read_body(request)), caller)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        return _json(answers.ModelList([served(request)]))

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        model = served(request)
        if name != model.id:
            raise ModelNotFound(name)
        return _json(model)

    def served(request: Request) -> answers.Model:
        secret.caller(request)
        serving = node.ready()
        model = serving.engine.model
        return answers.Model(model.name, serving.since, model.context)


def _add_operation(app: FastAPI, node: Node, secret: ClusterSecret, counts: Counter[tuple[str, int]]) -> None:
    registry = CollectorRegistry()
    registry.register(AgentCollector(node, counts))

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the process should go on living: also while it loads, not when the engine has failed."""
        if node.state is State.READY:
            node.ready()
        return _json({"status": "ok"})

    @app.get("/health")  # As vLLM and SGLang have it: routers made for them ask for it.
    @app.get("/readyz")
    async def readyz() -> Response:
        node.ready()
        return _json({"status": node.state})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get(INFO_PATH)
    async def info(request: Request) -> Response:
        """With a secret, where the events are is told to the cluster alone."""
        secret.caller(request)
        return _json(node.info())


async def _generate(request: Request, serving: Serving, body: CompletionBody | ChatBody, caller: Caller) -> Response:
    model = serving.engine.model
    if body.model != model.name:
        raise ModelNotFound(body.model)
    params.check(body)
    n = params.choices(body)
    salt = caller.salt
    prompts = await serving.preparer.prompts(body, salt)
    request_id: str = request.state.request_id
    generations = [
        Generation(
            request_id,
            prompt.tokens,
            params.sampling(body, len(prompt.tokens), model.context, serving.text.vocab_size, choice),
            salt,
            prompt.text_keys,
            prompt.text_depths,
            priority=body.priority or 0,
            pull_from=caller.pull_from,
            lead_s=caller.lead_s,
        )
        for prompt in prompts
        for choice in range(n)
    ]
    kind: type[Reply] = ChatReply if isinstance(body, ChatBody) else CompletionReply
    reply = kind(request_id, model.name, int(time.time()), [len(prompt.tokens) for prompt in prompts], n)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    then = partial(_publish_reply, serving, body, salt, prompts[0], reply) if isinstance(body, ChatBody) else None
    streams = _submit(serving.engine, generations)
    tracing = serving.tracing
    trace = RequestTrace(tracing, request.headers, request_id, model.name) if tracing is not None else None
    return Answer(reply, streams, stream=bool(body.stream), include_usage=include_usage, then=then, trace=trace)


async def _publish_reply(serving: Serving, body: ChatBody, salt: str, prompt: Prompt, reply: Reply) -> None:
    """The chat will go on from its first choice: routers shall find what is cached of it, the reply included."""
    text, tokens = reply.said(0)
    sequence = prompt.tokens + array("i", tokens)
    try:
        keys, depths = await serving.preparer.reply_keys(body, salt, text, sequence)
    except RequestError as error:
        log.debug("%s: its reply has no text keys: %s", reply.id, error.message)
    else:
        serving.engine.attach_text(sequence, salt, keys, depths)


def _submit(engine: Engine, generations: list[Generation]) -> list[GenerationStream]:
    """All or none."""
    streams: list[GenerationStream] = []
    try:
        for generation in generations:
            streams.append(engine.submit(generation))
    except RequestError:
        for stream in streams:
            stream.cancel()
        raise
    return streams


@contextlib.asynccontextmanager
async def _lifespan(node: Node, on_started: Callable[[TrunklineError | None], None]) -> AsyncIterator[None]:
    async def load() -> None:
        try:
            await node.start()
        except TrunklineError as error:
            on_started(error)
        except Exception as error:
            log.exception("the node cannot start")
            on_started(TrunklineError(f"the node cannot start: {type(error).__name__}: {error}"))
        else:
            on_started(None)

    loading = asyncio.create_task(load())
    try:
        yield
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await node.close()


async def _request_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    log.debug("%s: %d %s", request.state.request_id, error.status, error.message)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    shaped = RequestError(f"{request.method} {request.url.path}: {error.detail}", status=error.status_code)
    return error_response(shaped, error.headers)


def _json(message: object) -> Response:
    return Response(answers.encode(message), media_type="application/json")
