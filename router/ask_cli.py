"""`trunkline status`, `explain` and `drain`: what is asked of a router that runs.

It loads nothing that serves: whoever types a command waits for what is imported here.
"""

from typing import Annotated

import typer

from trunkline.router.drain_cli import drain as drain_node
from trunkline.router.explain.show import show as show_decisions
from trunkline.router.status import show
from trunkline.shared.ask import ADMIN_URL_VARIABLE, admin_token
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import MAX_LISTED, ROUTER_PORT

_URL = f"http://127.0.0.1:{ROUTER_PORT}"
_Url = Annotated[str, typer.Option(envvar=ADMIN_URL_VARIABLE, help="Base URL of the router, or host:port.")]


def status(
    url: _Url = _URL,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it, once a second, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The router's JSON as it is.")] = False,
) -> None:
    """Show nodes, summaries, pages per tier, hit rates and load.

    TRUNKLINE_ADMIN_TOKEN is sent along: a router that has one wants it.
    """
    if watch and json:
        raise ConfigError("--watch and --json exclude each other")
    show(url, watch=watch, as_json=json, token=admin_token())


def explain(
    request_id: Annotated[
        str | None, typer.Argument(help="As in the response's x-request-id. None: the newest decisions.")
    ] = None,
    url: _Url = _URL,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many of the newest decisions.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="The router's JSON as it is.")] = False,
) -> None:
    """Say why a request went where it went, and what became of it.

    TRUNKLINE_ADMIN_TOKEN is sent along: a router that has one wants it.
    """
    show_decisions(request_id, url, limit=limit, as_json=json, token=admin_token())


def drain(
    node: Annotated[str, typer.Argument(help="Its name, as `trunkline status` shows it, or host:port.")],
    url: _Url = _URL,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take requests again.")] = False,
    timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for what runs there.")] = 60.0,
) -> None:
    """Take a node out of service. What runs ends, and warm prefixes go to other nodes; it is not stopped.

    TRUNKLINE_ADMIN_TOKEN is sent along: a router that has one wants it. Exit status 1 if requests still run at the end.
    """
    drain_node(node, url, undo=undo, timeout_s=timeout, token=admin_token())
