"""Everything that is not hot: models, health, metrics, the state of the fleet."""

import socket
import time
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from trunkline.router.admin_fleet import add_fleet
from trunkline.router.admin_upkeep import add_upkeep
from trunkline.router.admission.flow import Flow, Refusal
from trunkline.router.context import Context
from trunkline.router.counters import Outcome
from trunkline.router.explain.view import brief, full
from trunkline.router.guard import Guard
from trunkline.router.metrics import RouterCollector
from trunkline.router.nodes import NodeState
from trunkline.router.summaries import SummaryStatus
from trunkline.router.ui.http import add_ui
from trunkline.shared.errors import Overloaded, RequestError
from trunkline.shared.names import MAX_LISTED


def api(context: Context, admin: socket.socket | None = None) -> FastAPI:
    """The FastAPI application. Every error has OpenAI's shape. `admin`: the listener of /admin and the page alone."""
    app = FastAPI(title="Trunkline router", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    guard = Guard(context.settings.admin_token, admin)
    metrics = CollectorRegistry()
    metrics.register(RouterCollector(context))

    def authenticated(request: Request) -> None:
        authorization = request.headers.get("authorization")
        context.tenants.authenticate(authorization.encode("latin-1") if authorization is not None else None)

    @app.exception_handler(RequestError)
    async def on_request_error(_: Request, error: RequestError) -> JSONResponse:
        headers = {"retry-after": f"{error.retry_after:.0f}"} if isinstance(error, Overloaded) else None
        return JSONResponse(error.body(), error.status, headers)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        shaped = RequestError(f"{request.method} {request.url.path}: {error.detail}", status=error.status_code)
        return JSONResponse(shaped.body(), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        shaped = RequestError(f"{field}: {first['msg']}, not {first['input']!r}", status=422, param=field)
        return JSONResponse(shaped.body(), shaped.status)

    @app.get("/v1/models", dependencies=[Depends(authenticated)])
    async def models() -> dict[str, object]:
        return {
            "object": "list",
            "data": [_model(name, length) for name, length in sorted(context.registry.models().items())],
        }

    @app.get("/v1/models/{name:path}", dependencies=[Depends(authenticated)])
    async def model(name: str) -> dict[str, object]:
        if not context.registry.candidates(name):
            raise context.registry.missing(name)
        return _model(name, context.registry.models().get(name, 0))

    @app.api_route("/v1/completions", methods=["POST"], include_in_schema=False)
    @app.api_route("/v1/chat/completions", methods=["POST"], include_in_schema=False)
    async def elsewhere() -> None:
        """Only reached with an absolute URL in the request line, which is for proxies; other methods get 405."""
        raise RequestError("send the path alone in the request line: this is not a forward proxy")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, object]:
        """Ready when a node is whose summary is complete, or known to be guesswork. After a start: when all are."""
        nodes = context.registry.nodes
        ready = [
            node.name for node in nodes if node.state is NodeState.READY and node.summary is not SummaryStatus.SYNCING
        ]
        missing = context.warmup.missing()
        response.status_code = 200 if ready and not missing else 503
        degraded = [node.name for node in nodes if node.name in ready and node.summary is not SummaryStatus.EXACT]
        replicas = context.replicas
        if replicas is not None and not replicas.link.connected:
            degraded.append(f"registry {replicas.address}: {replicas.link.error}")
        listing = context.listing
        if listing is not None and not listing.connected:
            degraded.append(f"{listing.address}: {listing.error}")
        status = "waiting for a node" if not ready else "starting" if missing else "ready"
        return {"status": status, "ready": ready, "missing": missing, "degraded": degraded}

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    @app.get("/admin/nodes", dependencies=[Depends(guard.privileged)])
    async def nodes() -> dict[str, object]:
        return view(context)

    @app.get("/admin/decisions", dependencies=[Depends(guard.privileged)])
    async def decisions(limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20) -> dict[str, object]:
        """The newest first."""
        kept, now, settings = context.decisions, time.monotonic(), context.settings.scheduler
        listed = [brief(decision, settings, now) for decision in kept.newest(limit)]
        return {"decisions": listed, "kept": len(kept)}

    @app.get("/admin/decisions/{request_id:path}", dependencies=[Depends(guard.privileged)])
    async def decision(request_id: str) -> dict[str, object]:
        found = context.decisions.find(request_id)
        if found is None:
            text = f"no decision on request {request_id!r} is kept: unknown, refused before it was placed, or too old"
            raise RequestError(text, status=404)
        return full(found, context.settings.scheduler, time.monotonic())

    add_fleet(app, context, guard)
    add_upkeep(app, context, guard)
    add_ui(app, context, guard)
    return app


def _model(name: str, length: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "trunkline", "max_model_len": length or None}


def view(context: Context) -> dict[str, object]:
    """JSON of the fleet: nodes with the scheduler's account of each, and the router's own counters."""
    scheduler, counters, accuracy = context.scheduler, context.counters, context.scheduler.accuracy
    admission = context.admission
    nodes = []
    for node, seen in zip(context.registry.nodes, context.registry.view(), strict=True):
        load = scheduler.load_of(node)
        placed = {"running": load.running, "pending_tokens": load.pending, "prefill_rate": round(load.prefill_rate, 1)}
        nodes.append({**seen, "placed": placed})
    access_log = context.access_log
    return {
        "nodes": nodes,
        "registry": context.replicas.view() if context.replicas is not None else None,
        "listing": context.listing.view() if context.listing is not None else None,
        "router": {
            "access_log": None
            if access_log is None
            else {"lines": access_log.lines, "dropped": access_log.dropped, "failure": access_log.failure},
            "inflight": counters.inflight,
            "responses": {str(status): count for status, count in sorted(counters.responses.items())},
            "retries": counters.retries,
            "broken_responses": counters.broken,
            "starved_requests": counters.starved,
            "client_disconnects": counters.outcomes[Outcome.LEFT],
            "prompt_tokens": counters.placed_tokens,
            "matched_tokens": counters.matched_tokens,
            "checked": {
                "requests": accuracy.requests,
                "prompt_tokens": accuracy.prompt_tokens,
                "expected_tokens": accuracy.expected_tokens,
                "cached_tokens": accuracy.real_tokens,
                "false_promises": accuracy.short,
            },
            "held": {
                "requests": admission.held,
                "work_seconds": round(admission.held_s, 3),
                "refused": {reason: sum(flow.refused[reason] for flow in admission.flows) for reason in Refusal},
            },
            "tenants": {flow.name: _tenant(flow) for flow in admission.flows if admission.fair},
            "claimed_keys": {"burst": scheduler.burst_claims.keys(), "assumed": scheduler.assumed_claims.keys()},
        },
    }


def _tenant(flow: Flow) -> dict[str, object]:
    return {
        "held": len(flow.held),
        "refused": sum(flow.refused.values()),
        "requests": flow.requests,
        "prompt_tokens": flow.prompt_tokens,
        "cached_tokens": flow.cached_tokens,
        "output_tokens": flow.output_tokens,
        "work_seconds": round(flow.work_s, 3),
    }
