"""What the nodes' discovery in Kubernetes tells Prometheus. Without it there are no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from trunkline.shared.metrics import router as catalog

if TYPE_CHECKING:
    from trunkline.router.discovery.watch import EndpointWatch


def collect(watch: EndpointWatch | None) -> Iterator[Metric]:
    if watch is None:
        yield from (metric.by(()) for metric in catalog.ENDPOINTS.metrics)
        return
    yield catalog.ENDPOINTS_CONNECTED.of(watch.connected)
    yield catalog.ENDPOINTS_LOSSES.of(watch.losses)
    yield catalog.ENDPOINTS_UNLISTED.of(len(watch.membership.unlisted))
    yield catalog.ENDPOINTS_REFUSED.of(len(watch.membership.refused))
