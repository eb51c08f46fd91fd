"""`trunkline router`."""

import gc
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trunkline.router.app import Router, bind
from trunkline.router.discovery.node_file import FileAddress
from trunkline.router.discovery.service import ServiceAddress, service_address
from trunkline.router.settings import Settings
from trunkline.router.tenants import Tenants, load_tenants
from trunkline.shared.ask import ADMIN_TOKEN_VARIABLE, admin_token
from trunkline.shared.errors import ConfigError
from trunkline.shared.logs import LEVELS, LogFormat, start_logging
from trunkline.shared.names import ROUTER_PORT
from trunkline.shared.registry import PASSWORD_VARIABLE, registry_address
from trunkline.shared.secret import load_secret, read_secret
from trunkline.shared.tracing import ENDPOINT_VARIABLE

_DEFAULTS = Settings(nodes=())


def router(
    node: Annotated[list[str] | None, typer.Option(help="Base URL of a node, or host:port; once for each.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = ROUTER_PORT,
    tenants: Annotated[Path | None, typer.Option(help="TOML file of tenants and their API keys.")] = None,
    cluster_secret_file: Annotated[
        Path | None, typer.Option(help="Secret shared with the agents; else TRUNKLINE_CLUSTER_SECRET.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            help="Redis where agents and routers register: redis://host:port/db, rediss://, redis+sentinel://"
        ),
    ] = None,
    registry_password_file: Annotated[
        Path | None, typer.Option(help=f"Password of the registry; else ${PASSWORD_VARIABLE}.")
    ] = None,
    kubernetes_service: Annotated[
        str | None, typer.Option(help="Headless Service, [NAMESPACE/]NAME, whose endpoints are nodes; in a pod.")
    ] = None,
    node_file: Annotated[
        Path | None, typer.Option(help="Lists nodes as --node takes them, a line each; read again when it changes.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="/admin and /ui are there, and on --port no more.")
    ] = None,
    admin_host: Annotated[str, typer.Option(help="Address of --admin-port.")] = "127.0.0.1",
    admin_token_file: Annotated[
        Path | None, typer.Option(help=f"What /admin wants as a bearer token; else ${ADMIN_TOKEN_VARIABLE}.")
    ] = None,
    max_inflight: Annotated[int, typer.Option(min=1, help="Requests at once; beyond it clients get 429.")] = (
        _DEFAULTS.max_inflight
    ),
    max_held: Annotated[
        int, typer.Option(min=1, help="Requests that wait for a node with room; beyond it clients get 429.")
    ] = _DEFAULTS.admission.max_held,
    queue_deadline: Annotated[
        float, typer.Option(min=1.0, help="Seconds that they wait at most; then clients get 503.")
    ] = _DEFAULTS.deadlines.queue,
    max_summary_keys: Annotated[
        int,
        typer.Option(min=1, max=1 << 30, help="Keys of what nodes hold, 27 bytes each; some hits are missed beyond."),
    ] = _DEFAULTS.max_summary_keys,
    drain_timeout: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds after SIGTERM for streams to end.")
    ] = _DEFAULTS.deadlines.drain,
    access_log: Annotated[
        Path | None, typer.Option(help="Append requests to this file, hashes and lengths only, for `trunkline sim`.")
    ] = None,
    log_level: Annotated[str, typer.Option(help=" | ".join(LEVELS))] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="Of the lines on stderr.")] = LogFormat.TEXT,
    log_bodies: Annotated[
        bool, typer.Option("--log-bodies", help="Also log what is asked: prompts, as they are.")
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(envvar=ENDPOINT_VARIABLE, help="OpenTelemetry collector for traces: http://host:4318"),
    ] = None,
) -> None:
    """Route requests over nodes. These are agents, or any servers that speak OpenAI's API.

    /ui shows the fleet in a browser. Without an admin token it and /admin answer this host alone, and change nothing.
    """
    start_logging(log_level, log_format)
    secret = load_secret(cluster_secret_file)
    who = Tenants(secret) if tenants is None else load_tenants(tenants, secret)
    if node_file is not None and kubernetes_service is not None:
        raise ConfigError("--node-file and --kubernetes-service exclude each other")
    if not node and registry is None and kubernetes_service is None and node_file is None:
        raise ConfigError(
            "no nodes: give a --node for each, a --registry where they register, a --kubernetes-service, "
            "or a --node-file that lists them"
        )
    listing: ServiceAddress | FileAddress | None = FileAddress(node_file) if node_file is not None else None
    if kubernetes_service is not None:
        listing = service_address(kubernetes_service)
    settings = Settings(
        nodes=tuple(node or ()),
        host=host,
        port=port,
        max_inflight=max_inflight,
        max_summary_keys=max_summary_keys,
        deadlines=replace(_DEFAULTS.deadlines, queue=queue_deadline, drain=drain_timeout),
        admission=replace(_DEFAULTS.admission, max_held=max_held),
        access_log=access_log,
        log_bodies=log_bodies,
        otlp_endpoint=otlp_endpoint or None,
        admin_token=admin_token() if admin_token_file is None else read_secret(admin_token_file, "admin token"),
        registry=registry_address(registry, registry_password_file) if registry is not None else None,
        listing=listing,
    )
    sources = (settings.registry, settings.listing)
    made = Router(settings, who)
    with ExitStack() as sockets:
        listeners = [sockets.enter_context(bind(host, port))]
        if admin_port is not None:
            listeners.append(sockets.enter_context(bind(admin_host, admin_port, of="admin-")))
        server = made.server(*listeners[1:])
        found = ", others from ".join([f"{len(settings.nodes)} nodes", *map(str, filter(None, sources))])
        print(f"router on {_address(listeners[0])} with {found}; page on {_address(listeners[-1])}/ui", flush=True)
        # What lives as long as the process need not be looked at again, and requests make next to no cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        server.run(sockets=listeners)


def _address(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
