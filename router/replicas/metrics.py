"""What the registry and the other routers tell Prometheus. Without a registry there are no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from trunkline.shared.metrics import router as catalog

if TYPE_CHECKING:
    from trunkline.router.replicas.replicas import Replicas


def collect(replicas: Replicas | None) -> Iterator[Metric]:
    if replicas is None:
        yield from (metric.by(()) for metric in catalog.REPLICAS.metrics)
        return
    link, peers, outbox = replicas.link, replicas.peers, replicas.scheduler.outbox
    membership = replicas.membership
    batches = {"sent": outbox.sent, "received": peers.batches, "missed": peers.missed, "refused": peers.refused}
    yield catalog.REGISTRY_CONNECTED.of(link.connected)
    yield catalog.REGISTRY_LOSSES.of(link.losses)
    yield catalog.REGISTRY_BAD.of(link.bad_frames)
    yield catalog.REGISTRY_UNLEASED.of(len(membership.unlisted))
    yield catalog.REGISTRY_REFUSED.of(len(membership.refused))
    yield catalog.REGISTRY_LOST.of(membership.lost)
    yield catalog.PEERS.of(len(peers.heard()))
    yield catalog.PEER_BATCHES.by(((what,), count) for what, count in batches.items())
    yield catalog.PEER_CLAIMS_KEPT.of(outbox.claims_kept)
