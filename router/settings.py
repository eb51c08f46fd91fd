"""Everything about a router that can be configured, parsed once."""

from dataclasses import dataclass
from pathlib import Path

from trunkline.router.discovery.node_file import FileAddress
from trunkline.router.discovery.service import ServiceAddress
from trunkline.shared.names import MAX_BODY_BYTES, ROUTER_PORT
from trunkline.shared.registry import RegistryAddress


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. Checked by one coarse ticker: each is kept to within `Ticker.INTERVAL_S`."""

    head: float = 20.0
    """For a client to send a request's head."""
    body: float = 60.0
    """For a client to send a request's body, as a whole."""
    keep_alive: float = 75.0
    """For a connection between requests."""
    queue: float = 60.0
    """For a node to have room for a request that waits here."""
    connect: float = 3.0
    """For a connection to a node."""
    first_byte: float = 600.0
    """From sending a request to a node until its response begins: queue, prefill, and all of a reply not streamed."""
    idle: float = 120.0
    """Without anything of a response that has begun; noticed after one to two times as long."""
    stalled_client: float = 300.0
    """For a client that does not read while its response waits."""
    linger: float = 2.0
    """For a client to read an error while it is still sending the body that was refused."""
    drain: float = 30.0
    """For streams to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What placement assumes until nodes say better, and how much it remembers."""

    prefill_rate: float = 8000.0
    """Tokens per second of a node that has not reported any."""
    promote_rate: float = 100_000.0
    """Tokens per second that a node which has not measured it brings from its host tier to the device."""
    disk_rate: float = 20_000.0
    """And from disk."""
    min_weight: float = 0.02
    max_weight: float = 0.5
    """Of a second of waiting, against one of work. However busy the fleet, a queue counts for something; however idle,
    computing a prefix again costs more than waiting for it as long: a second copy takes the place of something else."""
    decode_s: float = 0.005
    """Seconds by which each request under way on a node delays a prefill there."""
    max_running: int = 64
    """Requests that a node without reports computes at once."""
    bytes_per_token: float = 4.0
    """Of a model nothing has been learned about; English with a vocabulary of 32k to 150k."""
    load_limit: float = 0.9
    """A node above this load gives up its hits while another is below."""
    tie: float = 0.05
    """Costs that differ by less than this share count as equal, and chance decides."""
    burst_ttl: float = 10.0
    """Seconds that a claim on a node with exact events lasts, or as long as requests wait on the busiest node, if that
    is more; by then its events have arrived."""
    assumed_ttl: float = 1200.0
    """Seconds that a node without events is assumed to keep what was sent to it."""
    max_claims: int = 2 << 20
    """Keys of all claims of one kind together. The memory of claims is flat at this bound."""
    seed: int | None = None
    """Of the choice among near-equals. None: from the operating system."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How much waits at the router, and how little before it."""

    max_held: int = 1024
    """Requests that wait for nodes; beyond it clients get 429."""
    max_held_bytes: int = 256 << 20
    """Of their bodies."""
    depth_s: float = 0.1
    """Prefill sent to a node ahead of what it computes, when there are several tenants. A request waits for about as
    much, whatever others do; less keeps nodes from filling their steps."""
    credit_s: float = 30.0
    """Work of a node that a tenant may have in a burst, before others, for not having used its share until then."""
    free_share: float = 2.0
    """KV that a tenant's requests may take up on a node, as a multiple of what is free there: alone it uses 2/3."""
    reply_price: float = 2.0
    """Tokens of a prompt that a token of a reply costs a tenant: the price in Sheng et al., "Fairness in Serving Large
    Language Models" (OSDI 2024)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A router's configuration."""

    nodes: tuple[str, ...]
    """Base URLs. With a registry, nodes besides those that register."""
    host: str = "127.0.0.1"
    port: int = ROUTER_PORT
    max_inflight: int = 4096
    """Requests accepted and not yet answered; beyond it clients get 429."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_head_bytes: int = 64 * 1024
    max_tries: int = 3
    """Nodes tried for one request before its first byte."""
    max_summary_keys: int = 4 << 20
    """Keys of all summaries together, keys held by several nodes counted once."""
    max_idle_connections: int = 256
    """Kept open to each node."""
    access_log: Path | None = None
    """Where to log requests for replay; see `access_log.py`."""
    log_bodies: bool = False
    """Also log what was asked, with the one line that each request has."""
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector. None: no traces."""
    admin_token: str | None = None
    """Lets clients that are not on this host use /admin."""
    registry: RegistryAddress | None = None
    """Where nodes register, and other routers tell of their load. None: `nodes` are all, and this router is alone."""
    listing: ServiceAddress | FileAddress | None = None
    """Where further nodes are listed."""
    deadlines: Deadlines = Deadlines()
    scheduler: SchedulerSettings = SchedulerSettings()
    admission: AdmissionSettings = AdmissionSettings()
