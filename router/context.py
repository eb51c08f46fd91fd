"""What every request uses: the parts of one router."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trunkline.router.access_log import AccessLog
from trunkline.router.admission.admission import Admission
from trunkline.router.counters import Counters
from trunkline.router.discovery.listing import Listing
from trunkline.router.drain import Drain
from trunkline.router.explain.decisions import Decisions
from trunkline.router.handover import Handovers
from trunkline.router.nodes import Registry
from trunkline.router.pools import Pools
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
from trunkline.shared.tracing import Tracing

if TYPE_CHECKING:
    from trunkline.router.replicas.replicas import Replicas


@dataclass(frozen=True, slots=True)
class Context:
    """Shared by all connections of a router; used on the event loop only."""

    settings: Settings
    registry: Registry
    scheduler: Scheduler
    admission: Admission
    replication: Replication
    handovers: Handovers
    drain: Drain
    tenants: Tenants
    pools: Pools
    splices: Splices
    ticker: Ticker
    counters: Counters
    warmup: WarmUp
    replicas: "Replicas | None"
    """None: this router is alone."""
    listing: Listing | None
    """None: nodes are not looked for in Kubernetes."""
    access_log: AccessLog | None
    request_log: RequestLog | None
    """None: nobody would read it."""
    tracing: Tracing | None
    decisions: Decisions
    history: History
    prefixes: Prefixes
