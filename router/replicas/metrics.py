"""Prometheus metrics of the registry and the other routers. Without a registry they have no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from trunkline.router.replicas.replicas import Replicas


def collect(replicas: Replicas | None) -> Iterator[Metric]:
    gauges = {
        "registry_connected": "1 while the registry works, as far as this router can tell.",
        "registry_unleased_nodes": "Nodes that serve though their lease has ended.",
        "registry_refused_nodes": "Members that are not watched: no proof, or no room.",
        "peers": "Other routers that were heard of within a lease.",
    }
    counters = {
        "registry_losses": "Times that the connection to the registry was lost.",
        "registry_bad_messages": "Messages that did not decode.",
        "peer_claims_kept": "Claims that other routers were not told of: too many at once.",
    }
    values: dict[str, float] = {}
    batches: dict[str, int] = {}
    if replicas is not None:
        link, peers, outbox = replicas.link, replicas.peers, replicas.scheduler.outbox
        values = {
            "registry_connected": link.connected,
            "registry_unleased_nodes": len(replicas.membership.unlisted),
            "registry_refused_nodes": len(replicas.membership.refused),
            "peers": len(peers.heard()),
            "registry_losses": link.losses,
            "registry_bad_messages": link.bad_frames,
            "peer_claims_kept": outbox.claims_kept,
        }
        batches = {"sent": outbox.sent, "received": peers.batches, "missed": peers.missed, "refused": peers.refused}
    for name, text in gauges.items():
        yield GaugeMetricFamily(f"trunkline_router_{name}", text, values.get(name))
    for name, text in counters.items():
        yield CounterMetricFamily(f"trunkline_router_{name}", text, values.get(name))
    family = CounterMetricFamily("trunkline_router_peer_batches", "Batches among routers.", labels=["what"])
    for what, count in batches.items():
        family.add_metric([what], count)
    yield family
