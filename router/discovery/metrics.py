"""Prometheus metrics of the nodes' discovery in Kubernetes. Without it they have no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from trunkline.router.discovery.watch import EndpointWatch


def collect(watch: EndpointWatch | None) -> Iterator[Metric]:
    gauges = {
        "endpoints_connected": "1 while the Kubernetes API tells of nodes.",
        "endpoints_unlisted_nodes": "Nodes that serve though Kubernetes does not list them any more.",
        "endpoints_refused_nodes": "Endpoints that are not watched: no room.",
    }
    values: dict[str, float] = {}
    if watch is not None:
        values = {
            "endpoints_connected": watch.connected,
            "endpoints_unlisted_nodes": len(watch.membership.unlisted),
            "endpoints_refused_nodes": len(watch.membership.refused),
            "endpoints_losses": watch.losses,
        }
    for name, text in gauges.items():
        yield GaugeMetricFamily(f"trunkline_router_{name}", text, values.get(name))
    text = "Times that the watch of the Kubernetes API was lost."
    yield CounterMetricFamily("trunkline_router_endpoints_losses", text, values.get("endpoints_losses"))
