"""A router: its parts put together, and the FastAPI application around them. The hot endpoints are in `protocol`."""

import asyncio
import functools
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from trunkline.kernels.core import PrefixIndex
from trunkline.router import request_log
from trunkline.router.access_log import AccessLog
from trunkline.router.admin import api
from trunkline.router.admission.admission import Admission
from trunkline.router.context import Context
from trunkline.router.counters import Counters
from trunkline.router.discovery.listing import Listing
from trunkline.router.discovery.node_file import FileAddress, NodeFile
from trunkline.router.drain import Drain
from trunkline.router.explain.decisions import Decisions
from trunkline.router.handover import Handovers
from trunkline.router.nodes import Node, NodeListener, Registry, Timing
from trunkline.router.pools import Pools
from trunkline.router.protocol import EdgeProtocol
from trunkline.router.replication import Replication
from trunkline.router.request_log import RequestLog
from trunkline.router.scheduler.scheduler import Scheduler
from trunkline.router.settings import Settings
from trunkline.router.splices import Splices
from trunkline.router.tenants import Tenants
from trunkline.router.ticker import Ticker
from trunkline.router.ui.history import History
from trunkline.router.ui.prefixes import Prefixes
from trunkline.router.warmup import WarmUp
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import SUMMARY_PARTITIONS
from trunkline.shared.tracing import Tracing
from trunkline.shared.wire import Finished, Load

_BACKLOG = 4096


class _Server(uvicorn.Server):
    """A signal is a clean end: uvicorn would raise it again once everything has ended. A second one forces the exit."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


class Router(NodeListener):
    """Start -> serve -> drain. Everything runs on one event loop."""

    def __init__(self, settings: Settings, tenants: Tenants, *, timing: Timing | None = None) -> None:
        """Raises ConfigError for bad node URLs, an access log that cannot be written, traces that cannot be sent."""
        index = PrefixIndex(SUMMARY_PARTITIONS, settings.max_summary_keys)
        registry = Registry(settings.nodes, index, self, timing=timing, cluster_header=tenants.cluster_header)
        if settings.registry is None:
            replicas, scheduler = None, Scheduler(index, settings.scheduler)
            others = []
        else:
            # Imported here: it brings in a Redis client, which takes a tenth of a second.
            from trunkline.router.replicas.replicas import Replicas

            replicas = Replicas(settings.registry, settings, registry, index, tenants.secret)
            scheduler = replicas.scheduler
            others = [replicas.missing]
        listing: Listing | None = None
        if isinstance(settings.listing, FileAddress):
            listing = NodeFile(settings.listing, registry, tenants.secret)
        elif settings.listing is not None:
            # Likewise: it brings in an HTTP client.
            from trunkline.router.discovery.watch import EndpointWatch

            listing = EndpointWatch(settings.listing, registry, tenants.secret)
        if listing is not None:
            others.append(listing.missing)
        counters = Counters()
        replication = Replication(registry, index, scheduler, tenants.cluster_header)
        self.context = Context(
            settings=settings,
            registry=registry,
            scheduler=scheduler,
            admission=Admission(scheduler, tenants.configured, settings.admission),
            replication=replication,
            handovers=Handovers(registry, replication, tenants.cluster_header),
            drain=Drain(registry, scheduler, tenants.cluster_header),
            tenants=tenants,
            pools=Pools(settings.max_idle_connections, settings.deadlines.connect),
            splices=Splices(),
            ticker=Ticker(),
            counters=counters,
            warmup=WarmUp(registry, lambda: [text for missing in others for text in missing()]),
            replicas=replicas,
            listing=listing,
            access_log=None if settings.access_log is None else AccessLog(settings.access_log),
            request_log=RequestLog(bodies=settings.log_bodies) if request_log.log.isEnabledFor(logging.INFO) else None,
            tracing=_tracing(settings),
            decisions=Decisions(),
            history=History(counters, scheduler.accuracy),
            prefixes=Prefixes(),
        )

    def server(self, admin: socket.socket | None = None) -> uvicorn.Server:
        """A uvicorn server that speaks for this router; give it the socket of `bind`.

        `admin`: another such socket, the only one where /admin and the page are then.
        """
        deadlines = self.context.settings.deadlines
        return _Server(
            uvicorn.Config(
                self.app(admin),
                http=functools.partial(EdgeProtocol, context=self.context),  # type: ignore[arg-type]
                ws="none",
                loop="uvloop",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(deadlines.drain),
                backlog=_BACKLOG,
            )
        )

    def app(self, admin: socket.socket | None = None) -> FastAPI:
        app = api(self.context, admin)
        app.router.lifespan_context = self._lifespan
        return app

    def on_load(self, node: Node, load: Load) -> None:
        self.context.scheduler.on_load(node, load)
        self.context.admission.on_load(node, load)
        self.context.handovers.on_load(node, load)

    def on_finished(self, node: Node, finished: Finished) -> None:
        self.context.scheduler.on_finished(node, finished)
        self.context.admission.on_finished(finished)

    def on_identified(self, node: Node) -> None:
        if self.context.replicas is not None:
            self.context.replicas.peers.fold(node)

    def on_void(self, node: Node) -> None:
        self.context.admission.on_void(node)
        self.context.scheduler.on_void(node)
        self.context.pools.drop(node)
        self.context.handovers.on_void(node)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        context = self.context
        context.ticker.start()
        context.splices.start()
        context.ticker.watch(context.admission)
        context.ticker.watch(context.history)
        if context.request_log is not None:
            context.ticker.watch(context.request_log)
        await context.registry.start()
        if context.replicas is not None:
            context.replicas.start()
        if context.listing is not None:
            context.listing.start()
        try:
            yield
        finally:
            # Responses that outlived the drain deadline end with an error, not in silence.
            context.ticker.abandon()
            if context.listing is not None:
                await context.listing.close()
            if context.replicas is not None:
                await context.replicas.close()
            await context.handovers.close()
            await context.registry.close()
            await context.ticker.close()
            await context.pools.close()
            context.splices.close()
            if context.request_log is not None:
                context.request_log.abandon()  # Again: those that ended meanwhile.
            if context.access_log is not None:
                await asyncio.to_thread(context.access_log.close)
            if context.tracing is not None:
                await asyncio.to_thread(context.tracing.close)


def _tracing(settings: Settings) -> Tracing | None:
    if settings.otlp_endpoint is None:
        return None
    return Tracing(settings.otlp_endpoint, "trunkline-router", f"{socket.gethostname()}:{settings.port}")


def bind(host: str, port: int, of: str = "") -> socket.socket:
    """A listening socket. Raises ConfigError if the address cannot be used. `of`: begins the names of its flags."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # The latter: a name that no resolver takes.
        raise ConfigError(f"--{of}host {host} cannot be used: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # From here on clients wait instead of being refused.
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --{of}port"
        ) from None
    listener.setblocking(False)
    return listener
