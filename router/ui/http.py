"""Endpoints of the page."""

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from trunkline.router.context import Context
from trunkline.router.guard import Guard
from trunkline.router.ui.files import HEADERS, load
from trunkline.router.ui.live import Live
from trunkline.shared.errors import RequestError

_JSON = "application/json"
_READ = ["GET", "HEAD"]
_NO_STORE = {"cache-control": "no-store"}


def add_ui(app: FastAPI, context: Context, guard: Guard) -> None:
    """The files tell nothing, and are for whoever reaches the listener; what they show is not."""
    files, live = load(), Live(context)

    @app.api_route("/", methods=_READ, dependencies=[Depends(guard.listener)])
    @app.api_route("/ui", methods=_READ, dependencies=[Depends(guard.listener)])
    async def ui() -> Response:
        return RedirectResponse("ui/", 308)

    @app.api_route("/ui/{name:path}", methods=_READ, dependencies=[Depends(guard.listener)])
    async def file(name: str, request: Request) -> Response:
        found = files.get(name or "index.html")
        if found is None:
            raise RequestError(f"the page has no file {name!r}", status=404)
        headers = HEADERS | {"etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)

    @app.get("/admin/live", dependencies=[Depends(guard.privileged)])
    async def now() -> Response:
        return Response(await live.now(), media_type=_JSON, headers=_NO_STORE)

    @app.get("/admin/history", dependencies=[Depends(guard.privileged)])
    async def history() -> Response:
        return Response(live.history(), media_type=_JSON, headers=_NO_STORE)
