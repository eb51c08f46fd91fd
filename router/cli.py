"""`trunkline router` and `trunkline status`."""

import gc
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from trunkline.router.app import Router, bind
from trunkline.router.settings import Settings
from trunkline.router.status import show
from trunkline.router.tenants import Tenants, load_tenants
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import ROUTER_PORT
from trunkline.shared.secret import load_secret

LOG_LEVELS = ("debug", "info", "warning", "error")


def router(
    node: Annotated[list[str], typer.Option(help="Base URL of a node, once for each: http://10.0.0.1:8100")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = ROUTER_PORT,
    tenants: Annotated[Path | None, typer.Option(help="TOML file of tenants and their API keys.")] = None,
    cluster_secret_file: Annotated[
        Path | None, typer.Option(help="Secret shared with the agents; else TRUNKLINE_CLUSTER_SECRET.")
    ] = None,
    max_inflight: Annotated[int, typer.Option(min=1, help="Requests at once; beyond it clients get 429.")] = 4096,
    log_level: Annotated[str, typer.Option(help=" | ".join(LOG_LEVELS))] = "info",
) -> None:
    """Route requests over nodes: agents, or any servers that speak OpenAI's API.

    TRUNKLINE_ADMIN_TOKEN, if set, is what /admin wants as a bearer token; else it answers this host alone.
    """
    if log_level not in LOG_LEVELS:
        raise ConfigError(f"--log-level {log_level!r} is none of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    secret = load_secret(cluster_secret_file)
    who = Tenants(secret) if tenants is None else load_tenants(tenants, secret)
    settings = Settings(
        nodes=tuple(node),
        host=host,
        port=port,
        max_inflight=max_inflight,
        admin_token=os.environ.get("TRUNKLINE_ADMIN_TOKEN") or None,
    )
    server = Router(settings, who).server()
    listener = bind(host, port)
    address = listener.getsockname()
    print(f"router on http://{address[0]}:{address[1]} with {len(node)} nodes", flush=True)
    # What lives as long as the process need not be looked at again, and requests make next to no cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    server.run(sockets=[listener])


def status(
    url: Annotated[str, typer.Option(help="Base URL of the router, or host:port.")] = f"http://127.0.0.1:{ROUTER_PORT}",
    watch: Annotated[bool, typer.Option(help="Keep showing it, once a second, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option(help="The router's JSON as it is.")] = False,
) -> None:
    """Show nodes, summaries, pages per tier, hit rates and load.

    TRUNKLINE_ADMIN_TOKEN is sent along: a router that has one wants it.
    """
    if watch and json:
        raise ConfigError("--watch and --json exclude each other")
    show(url, watch=watch, as_json=json, token=os.environ.get("TRUNKLINE_ADMIN_TOKEN"))
